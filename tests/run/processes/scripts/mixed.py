"""fp16 with a scaler that overflows now and then, a schedule by plateaus, and an end by patience."""

import argparse

import faults
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import elastane

LENGTH, GLOBAL_BATCH, MICROBATCH, EVERY = 52, 16, 2, 3

parser = argparse.ArgumentParser()
parser.add_argument("--paced-from", type=int, default=1 << 30, help="each step waits for its file gate-STEP")
parser.add_argument("--fault", action="append", default=[], help="WORKER:STEP:MOMENT[:SIGNAL]")
parser.add_argument("--hold", action="append", default=[], help="MOMENT[:STEP]")
parser.add_argument("--end", choices=["patience", "break", "return"], default="patience")
options = parser.parse_args()

faults.record_work()
for fault in options.fault:
    faults.arm(fault)
for hold in options.hold:
    faults.hold(hold)

faults.pace(options.paced_from)
run = elastane.join()
model = nn.Sequential(
    nn.Linear(12, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=2)
model, optimizer = run.prepare(model, optimizer, scheduler=plateau, scaler=scaler, clip_grad_norm=0.5)
# The loss never improves by min_delta, so the patience ends after (1 + 4) * EVERY steps.
stopper = elastane.EarlyStopping(run, patience=4, min_delta=100.0)
run.keep["skipped"] = 0

generator = torch.Generator().manual_seed(1)
inputs = torch.randn(LENGTH, 12, generator=generator)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))


def loss_of(batch, targets):
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(batch)
    return functional.cross_entropy(logits.float(), targets)


def train() -> None:
    for step in run.steps(data, global_batch=GLOBAL_BATCH, microbatch=MICROBATCH, until=60):
        for batch, targets in step:
            step.backward(loss_of(batch, targets))
        run.keep["skipped"] += step.skipped
        if step.number % EVERY:
            continue
        score = run.evaluate(data, microbatch=10)
        model.eval()
        with torch.no_grad():
            for batch, targets in score:
                score.add(loss=loss_of(batch, targets), seen=1)
        model.train()
        figure = score.sums["loss"] / score.sums["seen"]
        plateau.step(figure)
        if options.end == "patience":
            stopper.update(figure)
        elif options.end == "return" and step.number == 5 * EVERY:
            return
        elif step.number == 5 * EVERY:
            break
        run.print(
            step.number, figure, scaler.get_scale(), optimizer.param_groups[0]["lr"], run.keep["skipped"]
        )


train()
run.print("kept", run.keep["skipped"])
