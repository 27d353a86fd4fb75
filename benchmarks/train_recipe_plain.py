"""Train a recipe without Elastane's runtime: ``train_recipe_plain.py loop|trainer RECIPE OUT``.

``loop`` is a plain loop over batches, ``trainer`` the ``Trainer`` of transformers. Both have the model, the
optimizer, the schedule and the microbatches of the recipe. OUT gets the times at which steps end, as JSON.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from elastane.recipes.data.open_data import RecipeData, load_tokenizer, open_data
from elastane.recipes.losses import causal_loss_sum
from elastane.recipes.models import build_model
from elastane.recipes.optimization import build_learning_rate_schedule, build_optimizer
from elastane.recipes.recipe import Recipe
from elastane.recipes.recipe_files import read_recipe
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments


def main() -> None:
    kind, named, out = sys.argv[1:]
    recipe = read_recipe(named)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(recipe.data, recipe.task)
    data = open_data(recipe.data, tokenizer, recipe.task, recipe.batch.context)
    model = build_model(recipe, tokenizer)
    train = train_in_loop if kind == "loop" else train_with_trainer
    Path(out).write_text(json.dumps(train(recipe, data, model)))


def train_in_loop(recipe: Recipe, data: RecipeData, model: nn.Module) -> list[float]:
    optimizer = build_optimizer(model, recipe.training)
    schedule = build_learning_rate_schedule(optimizer, recipe.training, recipe.training.steps)
    samples: Any = data.train
    loader: DataLoader[Any] = DataLoader(
        samples, recipe.batch.microbatch, shuffle=True, drop_last=True, collate_fn=data.collate
    )
    batches, ends = iter(loader), []
    for _ in range(recipe.training.steps):
        for _ in range(recipe.batch.virtual_ranks):
            loss, tokens = causal_loss_sum(model, next(batches))
            (loss / (tokens * recipe.batch.virtual_ranks)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.training.clip_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        ends.append(time.time())
    return ends


class TimedSteps(TrainerCallback):
    """Records the time of the end of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_args: Any, **_options: Any) -> None:
        self.ends.append(time.time())


class RecipeTrainer(Trainer):
    """The ``Trainer`` with the loss of the recipe."""

    def compute_loss(self, model: nn.Module, inputs: Any, *_args: Any, **_options: Any) -> Any:
        loss, tokens = causal_loss_sum(model, inputs)
        return loss / tokens


def train_with_trainer(recipe: Recipe, data: RecipeData, model: nn.Module) -> list[float]:
    optimizer = build_optimizer(model, recipe.training)
    schedule = build_learning_rate_schedule(optimizer, recipe.training, recipe.training.steps)
    timed = TimedSteps()
    arguments = TrainingArguments(
        output_dir="trainer",
        per_device_train_batch_size=recipe.batch.microbatch,
        gradient_accumulation_steps=recipe.batch.virtual_ranks,
        max_steps=recipe.training.steps,
        max_grad_norm=recipe.training.clip_grad_norm,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = RecipeTrainer(
        model=model,
        args=arguments,
        train_dataset=data.train,
        data_collator=data.collate,
        optimizers=(optimizer, schedule),
        callbacks=[timed],
    )
    trainer.train()
    return timed.ends


if __name__ == "__main__":
    main()
