"""Steps of a contestant and of a plain loop, one of each in turns in one process.

Two processes differ in speed by a fifth on a shared machine, and so does one process from minute to minute.
Neighbouring steps of one process do not, so the ratio of their times shows differences of a hundredth.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from elastane.integrations.recipes.data.open_data import RecipeData
from elastane.integrations.recipes.losses import causal_loss_sum
from elastane.integrations.recipes.models import build_model
from elastane.integrations.recipes.optimization import build_learning_rate_schedule, build_optimizer
from elastane.integrations.recipes.recipe import Recipe
from torch.utils.data import DataLoader

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class PlainLoop:
    """The training of a recipe in a plain loop, step by step."""

    def __init__(self, recipe: Recipe, data: RecipeData, tokenizer: Any) -> None:
        samples: Any = data.train
        self._recipe = recipe
        self._model = build_model(recipe, tokenizer).to(DEVICE)
        self._optimizer = build_optimizer(self._model, recipe.training)
        # Every contestant is measured with a plain loop beside it, so this one trains as long as both.
        steps = 2 * recipe.training.steps
        self._schedule = build_learning_rate_schedule(self._optimizer, recipe.training, steps)
        self._loader: DataLoader[Any] = DataLoader(
            samples, recipe.batch.microbatch, shuffle=True, drop_last=True, collate_fn=data.collate
        )
        self._batches = iter(self._loader)

    def step(self) -> None:
        """Make one step of as many microbatches as the recipe has."""
        ranks = self._recipe.batch.microbatches
        for _ in range(ranks):
            batch = self._load()
            with torch.autocast(DEVICE, torch.bfloat16, enabled=self._recipe.training.autocast):
                loss, tokens = causal_loss_sum(self._model, batch)
            (loss / (tokens * ranks)).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._recipe.training.clip_grad_norm)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()

    def _load(self) -> Any:
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(self._loader)
            batch = next(self._batches)
        return batch


def read_clock() -> float:
    """Return the time in seconds, when the GPU, if there is one, has done all that it was given."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class PairedTimes:
    """Times of a contestant's steps, each with that of the plain step that follows it.

    Args:
        build: builds the plain loop, after the contestant's first step.
    """

    def __init__(self, build: Callable[[], PlainLoop]) -> None:
        self._build = build
        self._plain: PlainLoop | None = None
        self._began_s = 0.0
        self.pairs: list[tuple[float, float]] = []

    def end_step(self) -> None:
        """Note the end of a contestant's step, and make the plain step."""
        ended_s = read_clock()
        if self._plain is None:
            self._plain = self._build()
            self._plain.step()
        else:
            began_s = read_clock()
            self._plain.step()
            self.pairs.append((ended_s - self._began_s, read_clock() - began_s))
        self._began_s = read_clock()

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.pairs))
