"""Samples: text that the model writes at an evaluation, an artifact of the run that its report shows."""

from typing import Any

import torch

from elastane.integrations.recipes.data.sample_file import IGNORED
from elastane.integrations.recipes.recipe import EvaluationSpec
from elastane.run.worker.session import Run

PROMPT_TOKENS = 16
"""The length of a prompt from a sample without a prompt of its own."""


def write_sample(run: Run, model: Any, tokenizer: Any, spec: EvaluationSpec, example: Any) -> None:
    """Let the model continue a text, and write both as ``sample.txt`` of the step just made.

    The model always takes the most probable token, so the sample of a step is the same on every worker.
    Without a prompt in ``spec`` the text begins like the held-out ``example``.
    """
    prompt = tokenizer(spec.prompt)["input_ids"] if spec.prompt else find_prompt(example)
    with run.artifact("sample.txt") as path:
        path.write_text(continue_text(model, tokenizer, prompt, spec.sample_tokens))


def find_prompt(example: Any) -> list[int]:
    """Return the tokens of a sample before its answer; without an answer, the first ones."""
    inputs, targets, *_ = example
    # The target of each position is the token after it.
    first = next((place for place, target in enumerate(targets) if target != IGNORED), 0)
    return [int(token) for token in inputs[: first + 1 if first else PROMPT_TOKENS]]


@torch.no_grad()
def continue_text(model: Any, tokenizer: Any, prompt: list[int], length: int) -> str:
    """Return the prompt and its continuation, with a line between them."""
    model.eval()
    given = torch.tensor([prompt], device=model.device)
    written = model.generate(
        input_ids=given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=length,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
    )[0, len(prompt) :]
    model.train()
    return f"{tokenizer.decode(prompt)}\n--- continued ---\n{tokenizer.decode(written)}\n"
