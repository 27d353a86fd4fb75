"""A small training with one of several data sources, which draw random numbers wherever that is possible."""

import argparse
import random
from collections.abc import Iterator

import faults
import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset

import elastane

LENGTH, FEATURES, CLASSES = 205, 12, 4

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["here", "loaders", "stream"])
parser.add_argument("--until", default="30 steps")
parser.add_argument("--paced-from", type=int, default=1 << 30, help="each step waits for its file gate-STEP")
parser.add_argument("--fault", action="append", default=[], help="WORKER:STEP:MOMENT[:SIGNAL]")
parser.add_argument("--hold", action="append", default=[], help="MOMENT[:STEP]")
options = parser.parse_args()


def sample(number: int) -> tuple[torch.Tensor, int]:
    inputs = torch.randn(FEATURES, generator=torch.Generator().manual_seed(number))
    noise = torch.rand(FEATURES) + random.random() + float(np.random.rand())
    return inputs + 0.1 * noise, int(inputs[:CLASSES].argmax())


class Mapped:
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return sample(index)


class Streamed(IterableDataset):
    def __init__(self, shard: int, shards: int) -> None:
        self.numbers = range(shard, LENGTH, shards)
        self.at = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        while self.at < len(self.numbers):
            self.at += 1
            yield sample(self.numbers[self.at - 1])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


faults.record_work()
for fault in options.fault:
    faults.arm(fault)
for hold in options.hold:
    faults.hold(hold)
faults.pace(options.paced_from)
run = elastane.join()
model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, CLASSES))
model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2), clip_grad_norm=0.5)
steps = run.steps(
    Streamed if options.way == "stream" else Mapped(),
    global_batch=16,
    microbatch=2,
    until=options.until,
    loaders=2 if options.way == "loaders" else 0,
)
for step in steps:
    for batch, targets in step:
        step.backward(functional.cross_entropy(model(batch), targets))
if run.digest is not None:
    run.print("digest", run.digest.parameters, run.digest.optimizer)
