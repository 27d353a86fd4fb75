"""Samples: text that the model writes at an evaluation, an artifact of the run that its report shows."""

from typing import Any

import torch

from elastane.recipes.recipe import EvaluationSpec
from elastane.runtime.session import Run

PROMPT_TOKENS = 16
IGNORED = -100


def write_sample(run: Run, model: Any, tokenizer: Any, spec: EvaluationSpec, example: Any) -> None:
    """Let the model continue a text, and write both as ``sample.txt`` of the step just made.

    The model always takes the most probable token, so the sample of a step is the same on every worker.

    Args:
        run: between two steps.
        model: the prepared model.
        tokenizer: its tokenizer.
        spec: the prompt and the length.
        example: a held-out sample, whose beginning is the prompt if ``spec`` has none.
    """
    prompt = tokenizer(spec.prompt)["input_ids"] if spec.prompt else find_prompt(example)
    with run.artifact("sample.txt") as path:
        path.write_text(continue_text(model, tokenizer, prompt, spec.sample_tokens))


def find_prompt(example: Any) -> list[int]:
    """Return the tokens of a sample before its answer; without an answer, the first ones."""
    tokens, labels = (torch.as_tensor(example[name]).tolist() for name in ("input_ids", "labels"))
    answer = next((place for place, label in enumerate(labels) if label != IGNORED), 0)
    return list(tokens[: answer or PROMPT_TOKENS])


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
