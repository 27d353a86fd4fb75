"""A short training in which a resource runs out: of which kind and where, the first argument says.

The second names the workers it happens to, as in ``1,2``, or is ``all``.
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
from elastane.runtime import worker_settings

moment, whom = sys.argv[1:]
worker = worker_settings.get_settings().worker
concerned = whom == "all" or worker in map(int, whom.split(","))


def use_up_descriptors(spared=0):
    """This process can open only so many more files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spared, hard))


STEPS = 60 if moment == "step 3" else 9


class Data(TensorDataset):
    def __getitem__(self, index):
        if concerned and moment == "dataset" and index == 3:
            use_up_descriptors()
            os.open(os.devnull, os.O_RDONLY)
        if concerned and moment == "memory of the dataset" and index == 3:
            raise MemoryError
        return super().__getitem__(index)


if concerned and moment == "threads":
    threading.stack_size(1 << 46)  # more than there are addresses
run = elastane.join()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if concerned and moment == "prepare":
    use_up_descriptors()
model, optimizer = run.prepare(model, optimizer)
inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
data = Data(inputs, (inputs[:, 0] > 0).long())

for step in run.steps(data, global_batch=8, microbatch=1, until=STEPS):
    for batch, targets in step:
        step.backward(functional.cross_entropy(model(batch), targets))
    if concerned and moment == "no room" and step.number == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
    if concerned and moment == "step 3" and step.number == 3:
        # Enough for the connection of a newcomer, not for its memory.
        use_up_descriptors(spared=1)
    if moment == "step 3":
        time.sleep(0.03)
if concerned and moment == "small files":
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
