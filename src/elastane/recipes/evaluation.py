"""Evaluations: the loss on held-out samples, which the workers share."""

import math
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Subset

from elastane.recipes.recipe import Recipe
from elastane.runtime.session import Run

IGNORED = -100


@torch.no_grad()
def measure_perplexity(run: Run, model: Any, data: Any, recipe: Recipe) -> float:
    """Evaluate the model on held-out samples; return the mean loss per labelled token, in nats.

    Args:
        run: between two steps.
        model: the prepared model.
        data: the data, as `elastane.recipes.data.open_data` returns it.
        recipe: the recipe.
    """
    model.eval()
    score = run.evaluate(
        limit_samples(data.held_out, recipe.evaluation.samples),
        microbatch=recipe.batch.microbatch,
        collate=data.collate,
    )
    for batch in score:
        inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
        labels = inputs.pop("labels")
        logits = model(**inputs, use_cache=False).logits
        targets = labels[:, 1:].flatten()
        loss = cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), targets, ignore_index=IGNORED, reduction="sum"
        )
        score.add(loss=loss, tokens=(targets != IGNORED).sum())
    model.train()
    return score.sums["loss"] / max(score.sums["tokens"], 1)


def limit_samples(samples: Any, most: int) -> Any:
    """Return the first samples of a dataset, or the dataset if it has no more."""
    return samples if len(samples) <= most else Subset(samples, range(most))


def format_perplexity(step: int, loss: float) -> str:
    """Return the result of an evaluation in one line."""
    return f"step {step}: held-out loss {loss:.4f}, perplexity {math.exp(min(loss, 700)):.2f}"
