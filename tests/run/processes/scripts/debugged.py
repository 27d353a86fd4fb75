"""A training with a breakpoint in the loop of a step ("loop"), between two steps ("between"), or nowhere."""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("where", nargs="?", default="")
parser.add_argument("--steps", type=int, default=5)
options = parser.parse_args()
run = elastane.join()
model = nn.Linear(4, 2)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
rounds = 0

for step in run.steps(data, global_batch=8, microbatch=2, until=options.steps):
    for batch, targets in step:
        rounds += 1
        # The rehearsal has three rounds and the first step four, so the eighth is in the second step.
        if options.where == "loop" and rounds == 8:
            breakpoint()  # noqa: T100 - the test is about it
        step.backward(functional.cross_entropy(model(batch), targets))
    if options.where == "between" and step.number == 3:
        breakpoint()  # noqa: T100 - likewise
run.print("the script says that it is done")
