"""A short training with one mistake in it, named by the first argument."""

import argparse
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastane
from elastane.run.worker import worker_settings

mistake = sys.argv[1]
if mistake == "import":
    import no_such_module  # noqa: F401 - the mistake
if mistake == "exit":
    sys.exit("nothing to do today")
if mistake == "arguments":
    argparse.ArgumentParser().parse_args(["--unknown"])
if mistake == "never joins":
    sys.exit()
if mistake == "process group":
    torch.distributed.init_process_group("gloo")
run = elastane.join()
if mistake == "joins twice":
    run = elastane.join()
if mistake == "never trains":
    sys.exit()


def wait_until_pinned():
    """Wait until the coordinator has accepted another worker: it refuses the one that reports later."""
    while json.loads(worker_settings.get_settings().run_dir.run.read_text())["pinned"] is None:
        time.sleep(0.01)


class Data(TensorDataset):
    def __getitem__(self, index):
        if mistake == "dataset" and index == 3:
            raise OSError("sample 3 is damaged")
        return super().__getitem__(index)


model = nn.Linear(4, 2)
if mistake == "another model" and worker_settings.get_settings().worker == 1:
    model = nn.Linear(4, 2, bias=False)
    wait_until_pinned()
kind = torch.optim.Adafactor if mistake == "optimizer" else torch.optim.SGD
model, optimizer = run.prepare(model, kind(model.parameters(), lr=0.1))
inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
if mistake == "another dataset" and worker_settings.get_settings().worker == 1:
    inputs = inputs + 1
    wait_until_pinned()
data = Data(inputs, (inputs[:, 0] > 0).long())
microbatch = {"batch": 5, "few virtual ranks": 4}.get(mistake, 1)

for step in run.steps(data, global_batch=8, microbatch=microbatch, until=9):
    if mistake == "step 3 of worker 1" and step.number == 3 and worker_settings.get_settings().worker == 1:
        raise ZeroDivisionError("in the third step")
    if mistake == "break on worker 1" and step.number == 3 and worker_settings.get_settings().worker == 1:
        break
    for batch, targets in step:
        loss = functional.cross_entropy(model(batch), targets)
        if mistake == "not finite" and step.number == 3:
            loss = loss / 0.0
        step.backward(loss)
        if mistake == "break inside" and step.number == 3:
            sys.exit()
    if mistake == "keeps its own":
        run.keep["worker"] = min(step.number, 3) * worker_settings.get_settings().worker // 3
    if mistake == "sets its own":
        model.scale = min(step.number, 3) * worker_settings.get_settings().worker // 3

if mistake == "evaluates alone" and worker_settings.get_settings().worker == 0:
    for _ in run.evaluate(data, microbatch=2):
        pass
