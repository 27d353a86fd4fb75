"""A short training that exhausts a resource: ``MOMENT WORKERS``.

The moment tells the resource and the place. The workers are ``all``, ``none`` or numbers, such as ``1,2``.
"""

import os
import resource
import sys
import threading
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastane
from elastane.run.worker import worker_settings

moment, workers = sys.argv[1:]
settings = worker_settings.get_settings()
affected = workers == "all" or str(settings.worker) in workers.split(",")


def use_up_descriptors(spared=0):
    """Let this process open only ``spared`` more files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spared, hard))


def wait_a_little_for(file):
    """Wait for a file, but no longer than a second: a worker joins between two steps."""
    give_up = time.monotonic() + 1
    while not file.exists() and time.monotonic() < give_up:
        time.sleep(0.01)


STEPS = 60 if moment == "step 3" else 9


class Data(TensorDataset):
    def __getitem__(self, index):
        if affected and moment == "dataset" and index == 3:
            use_up_descriptors()
            os.open(os.devnull, os.O_RDONLY)
        if affected and moment == "memory of the dataset" and index == 3:
            raise MemoryError
        return super().__getitem__(index)


if affected and moment == "threads":
    threading.stack_size(1 << 46)  # more than there are addresses
run = elastane.join()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if affected and moment == "prepare":
    use_up_descriptors()
model, optimizer = run.prepare(model, optimizer)
inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
data = Data(inputs, (inputs[:, 0] > 0).long())

for step in run.steps(data, global_batch=8, microbatch=1, until=STEPS):
    for batch, targets in step:
        step.backward(functional.cross_entropy(model(batch), targets))
    if affected and moment == "no room" and step.number == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
    if affected and moment == "step 3" and step.number == 3:
        # Enough for the connection of a new worker, not for its shared memory.
        use_up_descriptors(spared=1)
    if workers != "none" and moment == "step 3" and step.number >= 3:
        wait_a_little_for(settings.run_dir.root / "gates")
if affected and moment == "small files":
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
