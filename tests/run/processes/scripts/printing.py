# ruff: noqa: T201 - how any script prints
"""Prints before it joins, inside steps and between them, in the way of any script."""

import argparse

import faults
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--paced-from", type=int, default=1 << 30)
options = parser.parse_args()

faults.pace(options.paced_from)
print("begins")
run = elastane.join()
model = nn.Linear(4, 2)
run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = TensorDataset(torch.randn(32, 4), torch.zeros(32, dtype=torch.long))
for step in run.steps(data, global_batch=8, microbatch=1, until=16):
    for inputs, targets in step:
        print("inside")
        step.backward(nn.functional.cross_entropy(model(inputs), targets))
    print("step", step.number, end=": ")
    print(f"{step.loss:.4f}")
    run.print("also", step.number)
print("ends")
