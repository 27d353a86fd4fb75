"""Evaluations on held-out samples, which the workers share."""

import math
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils.data import Subset

from elastane.integrations.recipes.losses import (
    ReferenceModel,
    causal_loss_sum,
    move_batch,
    preference_margins,
    sequence_log_probs,
)
from elastane.integrations.recipes.recipe import Recipe
from elastane.run.worker.evaluation import Evaluation
from elastane.run.worker.session import Run


class PreferenceScore(msgspec.Struct, frozen=True):
    """The result of an evaluation of preference tuning.

    Args:
        loss: the mean loss of the pairs.
        accuracy: the fraction of pairs of which the model prefers the better answer, more than the reference
            does.
        margin: the mean margin of the better answer.
    """

    loss: float
    accuracy: float
    margin: float


@torch.no_grad()
def measure_loss(run: Run, model: nn.Module, data: Any, recipe: Recipe) -> float:
    """Evaluate a language model between two steps; return the mean loss per held-out token, in nats."""
    model.eval()
    score = open_evaluation(run, data, recipe)
    for batch in score:
        loss, tokens = causal_loss_sum(model, batch)
        score.add(loss=loss, tokens=tokens)
    model.train()
    return score.sums["loss"] / max(score.sums["tokens"], 1)


@torch.no_grad()
def measure_preference(
    run: Run, model: nn.Module, reference: ReferenceModel, data: Any, recipe: Recipe
) -> PreferenceScore:
    """Evaluate preference tuning; the arguments are those of `measure_loss` and the reference."""
    model.eval()
    score = open_evaluation(run, data, recipe)
    for batch in score:
        pairs = move_batch(batch, model)
        margins = preference_margins(
            sequence_log_probs(model, pairs),
            reference.compute_log_probs(model, pairs),
            recipe.preference.beta,
        )
        loss = -torch.nn.functional.logsigmoid(margins).sum()
        score.add(loss=loss, correct=(margins > 0).sum(), margin=margins.sum(), seen=len(margins))
    model.train()
    pairs_seen = max(score.sums["seen"], 1)
    return PreferenceScore(*(score.sums[name] / pairs_seen for name in ("loss", "correct", "margin")))


def open_evaluation(run: Run, data: Any, recipe: Recipe) -> Evaluation:
    """Return one pass over the held-out samples, as many as the recipe wants."""
    samples, most = data.held_out, recipe.evaluation.samples
    kept = samples if len(samples) <= most else Subset(samples, range(most))
    return run.evaluate(kept, microbatch=recipe.batch.microbatch, collate=data.collate)


def format_perplexity(step: str, loss: float) -> str:
    """Return the result of `measure_loss` after a named step as one line, with the perplexity."""
    return f"{step}: held-out loss {loss:.4f}, perplexity {math.exp(min(loss, 700)):.2f}"


def format_preference(step: str, score: PreferenceScore) -> str:
    """Return the result of `measure_preference` after a named step as one line."""
    return f"{step}: held-out loss {score.loss:.4f}, accuracy {score.accuracy:.3f}, margin {score.margin:.4f}"
