"""A training that logs values in the inner loop and after it, and writes files between steps."""

import argparse
import os

import faults
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--paced-from", type=int, default=1 << 30)
parser.add_argument("--fault", action="append", default=[], help="WORKER:STEP:MOMENT[:SIGNAL]")
parser.add_argument("--die-after", help="WORKER:STEP; this worker is killed once it has logged that step")
parser.add_argument("--differ-at", type=int, help="at this step each worker logs another value")
parser.add_argument("--differ-in-file", type=int, help="at this step each worker writes another file")
parser.add_argument("--raise-after", type=int, help="the script fails once it has logged this step")
parser.add_argument("--log", default="", help="trackers")
options = parser.parse_args()

faults.record_work()
for fault in options.fault:
    faults.arm(fault)
faults.pace(options.paced_from)
run = elastane.join(log=options.log)
model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Linear(16, 4))
model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.02))
inputs = torch.randn(52, 6, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
for step in run.steps(data, global_batch=16, microbatch=2, until=20):
    for batch, targets in step:
        outputs = model(batch)
        right = (outputs.argmax(1) == targets).float()
        step.backward(functional.cross_entropy(outputs, targets))
        # The second value is not a number if no prediction is right.
        run.log(accuracy=right.mean(), of_right=right.sum() / right.sum())
        if right.any():
            run.log(some_right=1.0)
    norm = sum(parameter.detach().double().square().sum().item() for parameter in model.parameters())
    own = float(os.getpid()) if step.number == options.differ_at else 0.0
    run.log(weights=norm, noise=torch.rand(()), own=own, overflow=torch.tensor(90.0 * step.number).exp())
    if step.number % 5 == 0:
        model.eval()
        score = run.evaluate(data, microbatch=13)
        with torch.no_grad():
            for batch, targets in score:
                score.add(loss=functional.cross_entropy(model(batch), targets, reduction="sum"))
        model.train()
        run.log(val_loss=score.sums["loss"] / 52)
        with run.artifact("weights.txt") as path:
            extra = str(os.getpid()) if step.number == options.differ_in_file else ""
            path.write_text(f"{norm.hex()} {score.sums['loss'].hex()} {extra}\n")
    if options.die_after == f"{elastane.run.worker.worker_settings.get_settings().worker}:{step.number}":
        os.kill(os.getpid(), 9)
    if step.number == options.raise_after:
        raise ValueError("the script fails here")
