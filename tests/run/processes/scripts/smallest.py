"""Six steps of a linear model."""

import torch
from torch import nn

import elastane

run = elastane.join()
model = nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = torch.utils.data.TensorDataset(torch.ones(32, 4), torch.ones(32, 1))
for step in run.steps(data, global_batch=8, microbatch=2, until=6):
    for x, y in step:
        step.backward(nn.functional.mse_loss(model(x), y))
