"""A model with more optimizer state than a new worker receives in one step; the script changes all values.

AdamW has 60 MB of state, and a worker receives 16 MiB per step.
"""

import argparse

import faults
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--paced-from", type=int, default=1 << 30)
options = parser.parse_args()

faults.record_work()
faults.pace(options.paced_from)
run = elastane.join()
model = nn.Sequential(
    *(layer for _ in range(7) for layer in (nn.Linear(1024, 1024), nn.Tanh())), nn.Linear(1024, 4)
)
model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
inputs = torch.randn(32, 1024, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
for step in run.steps(data, global_batch=8, microbatch=2, until=24):
    for batch, targets in step:
        step.backward(functional.cross_entropy(model(batch), targets))
    norms = [parameter.norm().item() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, norm in zip(model.parameters(), norms, strict=True):
            parameter.clamp_(-0.03, 0.03).mul_(1 - 1e-3 / (1 + norm / sum(norms)))
if run.digest is not None:
    run.print("digest", run.digest.parameters, run.digest.optimizer)
