"""The loop of a recipe's script: over the steps of the run, or over its rounds."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from elastane import outer
from elastane.integrations.recipes.data.open_data import RecipeData
from elastane.integrations.recipes.recipe import (
    Recipe,
    RoundsSpec,
    count_made_steps,
    count_rounds,
    count_training_steps,
)
from elastane.run.worker.session import Run
from elastane.run.worker.step import TrainingStep
from elastane.run.worker.training_round import TrainingRound


def choose_outer(rounds: RoundsSpec | None) -> dict[str, Any]:
    """Return the arguments of ``run.prepare`` for rounds: SGD steps once in each, by what ranks have changed.

    It has Nesterov's momentum, unless the momentum is 0. None: the recipe has no rounds.
    """
    if rounds is None:
        return {}
    rate, momentum = rounds.outer_learning_rate, rounds.outer_momentum
    chosen = outer.Nesterov(rate, momentum) if momentum else functools.partial(torch.optim.SGD, lr=rate)
    return {"outer": chosen, "inner_state": rounds.inner_state}


def open_loop(run: Run, recipe: Recipe, data: RecipeData) -> Iterator[TrainingStep]:
    """Return the steps of the run, or its rounds; loop over `list_inner_steps` of each."""
    batch, rounds = recipe.batch, recipe.training.rounds
    if rounds is None:
        return run.steps(
            data.train,
            global_batch=batch.size,
            microbatch=batch.microbatch,
            until=f"{count_training_steps(recipe, data.samples)} steps",
            drop_last=recipe.drops_last,
            collate=data.collate,
        )
    return run.rounds(
        data.train,
        inner_steps=rounds.inner_steps,
        ranks=rounds.ranks,
        global_batch=batch.size,
        microbatch=batch.microbatch,
        until=f"{count_rounds(recipe, data.samples)} rounds",
        wire=rounds.wire,
        group=rounds.group,
        delay=rounds.delay,
        absent=rounds.absent,
        collate=data.collate,
    )


def list_inner_steps(step: TrainingStep) -> Iterable[Any]:
    """Return the inner steps of a round that this worker makes; a step without rounds is its only one."""
    return step if isinstance(step, TrainingRound) else (step,)


def name_step(step: TrainingStep) -> str:
    """Return the number of a step, or of a round, for people."""
    return f"{'round' if isinstance(step, TrainingRound) else 'step'} {step.number}"


def is_evaluation_due(recipe: Recipe, data: RecipeData, step: TrainingStep) -> bool:
    """Return whether the model is evaluated after a step, or after a round."""
    every = recipe.evaluation.every
    before, made = (count_made_steps(recipe, data.samples, n) for n in (step.number - 1, step.number))
    return step.last or (every > 0 and before // every < made // every)
