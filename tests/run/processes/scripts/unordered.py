"""A training with a vocabulary and parameter groups in the order of a set, as in many scripts."""

import argparse
from itertools import pairwise

import faults
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastane

TEXT = """
the order in which a set gives its words is drawn anew for each process unless it is pinned so a script which
numbers words by it or makes groups of parameters of it trains another model in each of them
"""

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--paced-from", type=int, default=1 << 30, help="each step waits for its file gate-STEP")
options = parser.parse_args()

run = elastane.join()
words = TEXT.split()
numbers = {word: number for number, word in enumerate(set(words))}
layers = nn.ModuleDict(
    {name: nn.Linear(16, 16) for name in ("query", "key", "value", "output", "up", "down")}
)
model = nn.ModuleDict({"words": nn.Embedding(len(numbers), 16), "layers": layers, "head": nn.Linear(16, 8)})
groups = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
optimizer = torch.optim.AdamW(
    [{"params": model.get_submodule(name).parameters()} for name in groups], lr=1e-2
)
model, optimizer = run.prepare(model, optimizer)
run.print("vocabulary", *numbers)

data = TensorDataset(torch.tensor([[numbers[a], numbers[b]] for a, b in pairwise(words)]))
for step in run.steps(data, global_batch=16, microbatch=2, until=options.steps):
    if step.number >= options.paced_from:
        faults.wait_for(f"gate-{step.number}", "gates")
    for (pairs,) in step:
        hidden = model["words"](pairs[:, 0])
        for layer in layers.values():
            hidden = torch.tanh(layer(hidden))
        step.backward(functional.cross_entropy(model["head"](hidden), pairs[:, 1] % 8))
