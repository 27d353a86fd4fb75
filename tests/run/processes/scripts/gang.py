"""The training of tests with workers of several processes: FSDP2 inside, if the worker has more than one.

Dropout, AdamW in two groups, a schedule, shards of unequal size and shards without elements.
"""

import argparse
import importlib
import os
import time

import faults
import gang_faults
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastane
from elastane.run.worker import assembly
from elastane.run.worker.state.placement import Mirrored

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--length", type=int, default=64)
parser.add_argument("--paced-from", type=int, default=1 << 30, help="each step waits for its file gate-STEP")
parser.add_argument("--clip", type=float)
parser.add_argument("--seconds", type=float, default=0.0, help="extra seconds of each virtual rank")
parser.add_argument("--fault", default="", help="WORKER.PROCESS:STEP:MOMENT[:SIGNAL]")
parser.add_argument("--edit", action="store_true", help="the script changes a parameter between two steps")
parser.add_argument("--edit-late", action="store_true", help="likewise after the last step, process 1 later")
parser.add_argument("--plain", default="", help="a module that is not divided, a buffer, or stages")
parser.add_argument(
    "--tensor", type=int, default=1, help="processes that divide matrices: one of the data each"
)
parser.add_argument(
    "--no-dropout", action="store_true", help="processes drop other elements of their columns"
)
parser.add_argument("--width", type=int, default=257)
parser.add_argument(
    "--forget-places", action="store_true", help="the script does not name the data dimension"
)
parser.add_argument(
    "--frozen", action="store_true", help="with frozen layers: alone in a group of FSDP, beside others, whole"
)
parser.add_argument("--mirrored", action="store_true", help="train as on a device, beside the arena")
parser.add_argument("--sequence", action="store_true", help="with a norm that sees parts of the sequence")
parser.add_argument(
    "--mistake", default="", choices=["", "rank", "raise", "outputs", "in-step", "copies", "moved", "frozen"]
)
options = parser.parse_args()

processes, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
faults.pace(options.paced_from)
if options.fault:
    gang_faults.arm(options.fault)
if options.mirrored:
    assembly.choose_placement = Mirrored

run = elastane.join()
width = 256 if options.tensor > 1 else options.width
dropout = 0.0 if options.no_dropout else 0.2
model = nn.Sequential(
    nn.Linear(12, width),
    nn.Tanh(),
    nn.Dropout(dropout),
    nn.Linear(width, 129),
    nn.LayerNorm(129),
    nn.Linear(129, 3),
)
if options.frozen:
    model[0].requires_grad_(requires_grad=False)
    model[3].weight.requires_grad_(requires_grad=False)
    model[4].requires_grad_(requires_grad=False)
if options.plain == "buffer":
    model.append(nn.BatchNorm1d(3))
places = None
if options.tensor > 1:
    gang_mesh = importlib.import_module("gang_mesh")
    shape = processes // options.tensor, options.tensor
    places = gang_mesh.divide(model, *shape, sequence=options.sequence)
    if options.forget_places:
        places = None
elif options.plain == "stages":
    torch.distributed.init_process_group("gloo")
    model[5 if rank == 0 else 0] = nn.Identity()
elif processes > 1:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0])
    if options.plain != "parameter":
        fully_shard(model, ignored_params=set(model[4].parameters()) if options.frozen else None)
optimizer = torch.optim.AdamW(
    [{"params": model[:2].parameters(), "weight_decay": 0.1}, {"params": model[2:].parameters(), "lr": 2e-3}],
    lr=1e-2,
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
model, optimizer = run.prepare(model, optimizer, scheduler=scheduler, clip_grad_norm=options.clip)

generator = torch.Generator().manual_seed(1)
inputs = torch.randn(options.length, 12, generator=generator)
data = TensorDataset(inputs, inputs[:, :3].argmax(1))

for step in run.steps(data, global_batch=16, microbatch=2, until=options.steps, data=places):
    for batch, targets in step:
        time.sleep(options.seconds)
        if options.mistake == "raise" and rank == 1 and step.number == 2:
            raise ZeroDivisionError("in process 1")
        if options.mistake == "in-step" and step.number == 2:
            with torch.no_grad():
                model[0].weight.mul_(1.0)
        step.backward(functional.cross_entropy(model(batch), targets))
    if options.edit:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.99)
    if options.mistake == "copies" and rank == 1:
        with torch.no_grad():
            model[5].bias.add_(1.0)
    if options.mistake == "moved":
        model[0].weight._local_tensor = model[0].weight._local_tensor.clone()
    if options.mistake == "frozen":
        with torch.no_grad():
            model[3].weight.mul_(2.0)
    if options.mistake == "rank":
        run.keep["rank"] = rank
    if step.number in (3, 5):
        score = run.evaluate(data, microbatch=14)
        model.eval()
        with torch.no_grad():
            for batch, targets in score:
                predicted = model(batch)
                score.add(loss=functional.cross_entropy(predicted, targets), seen=len(targets))
                score.gathered.add(largest=predicted.max())
                if options.mistake == "outputs":
                    score.outputs.add(predicted=predicted)
        model.train()
        run.print(f"evaluated: {score.sums} {score.gathered['largest']}")
    with run.artifact("loss.txt") as path:
        path.write_text(f"{step.loss!r}")
    run.print(f"step {step.number}: {step.loss!r} {step.norm!r}")
if options.edit_late:
    time.sleep(rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.99)
