"""Train a recipe beside a plain loop, in turns: ``train_recipe_paired.py KIND RECIPE OUT``.

KIND is ``recipe``, the script of the recipe, also under ``elastane run``; ``trainer``, the ``Trainer`` of
transformers; or ``loop``, another plain loop, which shows what the measurement itself can tell apart. All
have the model, the optimizer, the schedule and the microbatches of the recipe. OUT gets the seconds of each
pair of steps, as JSON.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from elastane.integrations.recipes.data.open_data import load_tokenizer, open_data
from elastane.integrations.recipes.losses import causal_loss_sum
from elastane.integrations.recipes.models import build_model
from elastane.integrations.recipes.optimization import build_learning_rate_schedule, build_optimizer
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_files import read_recipe
from elastane.integrations.recipes.scripts import train
from elastane.run.worker.session import Run
from elastane.run.worker.state.optimizer_guard import OptimizerGuard
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from paired_steps import DEVICE, PairedTimes, PlainLoop


def main() -> None:
    kind, named, out = sys.argv[1:]
    recipe = read_recipe(named)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(recipe.data, recipe.task)
    data = open_data(recipe.data, tokenizer, recipe.task, recipe.batch.context)
    times = PairedTimes(lambda: PlainLoop(recipe, data, tokenizer))
    if kind == "recipe":
        train_with_script(named, times)
    elif kind == "trainer":
        train_with_trainer(recipe, build_model(recipe, tokenizer).to(DEVICE), data, times)
    else:
        loop = PlainLoop(recipe, data, tokenizer)
        for _ in range(recipe.training.steps):
            loop.step()
            times.end_step()
    times.write(Path(out))


def train_with_script(named: str, times: PairedTimes) -> None:
    """Run the script of the recipe, unchanged; the plain steps come between its steps."""
    make_steps = Run.steps

    def pair_steps(self: Run, *arguments: Any, **options: Any) -> Iterator[Any]:
        for step in make_steps(self, *arguments, **options):
            yield step
            times.end_step()

    Run.steps = pair_steps  # type: ignore[method-assign]
    # A run refuses a second optimizer: a worker that joins would lack its state. Here no worker joins.
    OptimizerGuard._check_step = lambda *_: None  # type: ignore[method-assign]
    sys.argv[1:] = [named]
    train.main()


class PairedSteps(TrainerCallback):
    """Makes a plain step after each step of a Trainer."""

    def __init__(self, times: PairedTimes) -> None:
        self._times = times

    def on_step_end(self, *_args: Any, **_options: Any) -> None:
        self._times.end_step()


class RecipeTrainer(Trainer):
    """The ``Trainer`` with the loss of the recipe."""

    def compute_loss(self, model: nn.Module, inputs: Any, *_args: Any, **_options: Any) -> Any:
        loss, tokens = causal_loss_sum(model, inputs)
        return loss / tokens


def train_with_trainer(recipe: Recipe, model: nn.Module, data: Any, times: PairedTimes) -> None:
    optimizer = build_optimizer(model, recipe.training)
    schedule = build_learning_rate_schedule(optimizer, recipe.training, recipe.training.steps)
    arguments = TrainingArguments(
        output_dir="trainer",
        per_device_train_batch_size=recipe.batch.microbatch,
        gradient_accumulation_steps=recipe.batch.microbatches,
        max_steps=recipe.training.steps,
        max_grad_norm=recipe.training.clip_grad_norm,
        save_strategy="no",
        report_to=[],
        use_cpu=DEVICE == "cpu",
        bf16=recipe.training.autocast,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = RecipeTrainer(
        model=model,
        args=arguments,
        train_dataset=data.train,
        data_collator=data.collate,
        optimizers=(optimizer, schedule),
        callbacks=[PairedSteps(times)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
