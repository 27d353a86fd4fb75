"""A program that trains a recipe for two steps, and writes the most memory that the training added.

``measured_memory.py FILE RECIPE CHANGES...``. Of the processes of a worker, the first one writes it.
"""

import json
import os
import sys
from pathlib import Path

import torch

import elastane
from elastane.integrations.recipes.losses import causal_loss_sum
from elastane.integrations.recipes.models import build_model, divide_model
from elastane.integrations.recipes.optimization import build_optimizer
from elastane.integrations.recipes.resolution import load_recipe


class Tokenizer:
    bos_token_id = eos_token_id = pad_token_id = 0

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


class Windows:
    """Samples of the recipe's context, made of their positions."""

    def __init__(self, context, vocabulary):
        self.context, self.vocabulary = context, vocabulary

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.arange(index, index + self.context) % self.vocabulary
        return {"input_ids": tokens, "targets": tokens}

    def fingerprint(self):
        return "windows"


def read_bytes(field):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def train(recipe, steps):
    run = elastane.join()
    model = divide_model(build_model(recipe, Tokenizer(recipe.data.vocabulary)))
    model, _ = run.prepare(model, build_optimizer(model, recipe.training))
    windows = Windows(recipe.batch.context, recipe.data.vocabulary)
    options = {"global_batch": recipe.batch.size, "microbatch": recipe.batch.microbatch, "until": steps}
    for step in run.steps(windows, **options):
        for batch in step:
            loss_sum, weight = causal_loss_sum(model, batch)
            step.backward(loss_sum, weight=weight)


def main():
    written, name, *changes = sys.argv[1:]
    recipe = load_recipe(name, changes, Path.cwd())
    # Load what the first step of any model loads: libraries, kernels and their threads.
    small = build_model(load_recipe(name, ["data.vocabulary=300"], Path.cwd()), Tokenizer(300))
    tokens = torch.zeros((1, 8), dtype=torch.int64)
    causal_loss_sum(small, {"input_ids": tokens, "targets": tokens})[0].backward()
    build_optimizer(small, recipe.training).step()
    del small
    before = read_bytes("VmRSS")
    train(recipe, 2)
    if os.environ.get("RANK", "0") == "0":
        Path(written).write_text(json.dumps(read_bytes("VmHWM") - before))


main()
