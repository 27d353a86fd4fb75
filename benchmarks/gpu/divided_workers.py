"""Try what a worker of two processes needs of a GPU: FSDP2 in memory of the run, sums over NCCL, and a death.

Elastane refuses GPUs in such a worker so far; this uses its parts without the refusal. Both processes have
the one GPU, and NCCL takes them for two machines, as in `nccl_death.py`: its traffic passes through sockets.
They train a divided model with a frozen layer in the placement of a GPU, and process 0 then trains the
undivided one alone, with the same microbatches. Every bit must be equal, on the device and in the memory
that peers read. At last process 1 dies before a step, and process 0 is killed in the collective that misses
it, as the agent does. Without a GPU, ``--small`` tries this script: other memory of the CPU stands for the
GPU's, and Gloo for NCCL.
"""

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from elastane.run.worker.state import local_shards
from elastane.run.worker.state.devices import pin_kernels
from elastane.run.worker.state.divided_tensors import get_local
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.placement import Mirrored
from elastane.run.worker.state.training_state import TrainingState
from torch import nn
from torch.distributed.fsdp import fully_shard

PROCESSES, LAYERS, STEPS, WARMUP_STEPS = 2, 6, 12, 3
WIDTH, SMALL_WIDTH = 2049, 65
"""Odd, so that the parts of the two processes have different sizes."""
ROWS = 64
"""Of a microbatch."""
DEATH_S = 3.0
"""How long process 0 waits for the dead process before it is killed, too."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_model(width: int) -> nn.Sequential:
    """Return the model, with the same values in every process; its first layer is frozen."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in range(LAYERS)]
    model = nn.Sequential(*layers, nn.Linear(width, 3)).to(DEVICE)
    model[0].requires_grad_(requires_grad=False)
    return model


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2
    )


def compute(model: nn.Module, width: int, step: int, process: int) -> None:
    """Compute the gradients of the microbatch that a process has in a step."""
    generator = torch.Generator().manual_seed(step * PROCESSES + process)
    model(torch.randn(ROWS, width, generator=generator).to(DEVICE)).square().mean().backward()


def train_alone(width: int) -> dict[str, torch.Tensor]:
    """Return the values of the undivided model; the gradients of all processes are added in their order."""
    model = make_model(width)
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        for process in range(PROCESSES):
            # The second gradient is added to the first one.
            compute(model, width, step, process)
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


class Divided:
    """The model, divided among both processes, in memory of the run.

    Args:
        process: the number of this one.
    """

    def __init__(self, width: int, process: int) -> None:
        self._width, self._process = width, process
        self.model = make_model(width)
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        self._optimizer = make_optimizer(self.model)
        # What it refuses is what this program tries.
        local_shards._check_parameters = lambda *_: None
        self.shards = local_shards.LocalShards(self.model, self._optimizer, PROCESSES)
        self.layout = ModelLayout(self.model, self._optimizer, self.shards)
        self.placement = Mirrored(self.layout)
        self._state = TrainingState(
            self.model,
            self._optimizer,
            None,
            self.layout,
            copies=None,
            placement=self.placement,
            shards=self.shards,
        )

    def train(self, step: int) -> None:
        """Make one step."""
        compute(self.model, self._width, step, self._process)
        for local, source in zip(self.layout.parameters, self.layout.sources, strict=True):
            assert source.grad is not None, "every trained layer has a gradient"
            local.grad, source.grad = get_local(source.grad), None
        with self._state.guard.allow_steps():
            self._optimizer.step()
        self.placement.mark_changed(range(len(self.layout.blocks)))
        self._state.forget_gathered()

    def count_stale(self) -> int:
        """Return how many elements peers would read other than this process has them."""
        self.placement.commit_values()
        pairs = list(zip(self.placement.values, self.placement.arena.tensors, strict=True))
        frozen = self._state.frozen
        assert frozen is not None, "a layer is frozen"
        for parameter, extent in zip(self.layout.divided_frozen, self.layout.frozen_extents, strict=True):
            pairs.append((get_local(parameter.detach()).flatten(), extent.view(frozen.tensors).flatten()))
        return sum(count_different(there.cpu(), here) for there, here in pairs)


def count_different(one: torch.Tensor, other: torch.Tensor) -> int:
    return int((one.view(torch.int32) != other.view(torch.int32)).sum())


def run_process(process: int, folder: str, width: int) -> None:
    if DEVICE.type == "cpu":
        from tests.run.processes.scripts import rooms

        rooms.install()
    os.environ.update(
        NCCL_HOSTID=f"machine-{process}",
        NCCL_SOCKET_IFNAME="lo",
        GLOO_SOCKET_IFNAME="lo",
        NCCL_IB_DISABLE="1",
    )
    torch.set_num_threads(1)
    pin_kernels(DEVICE)
    dist.init_process_group(
        "gloo" if DEVICE.type == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=f"file://{folder}/store",
        rank=process,
        world_size=PROCESSES,
        timeout=timedelta(seconds=60),
    )
    divided = Divided(width, process)
    began = time.perf_counter()
    for step in range(STEPS):
        if step == WARMUP_STEPS:
            synchronize()
            began = time.perf_counter()
        divided.train(step)
    synchronize()
    step_ms = 1e3 * (time.perf_counter() - began) / (STEPS - WARMUP_STEPS)
    found = dict(find_differences(divided, train_alone(width)))
    stale: list[int] = [0] * PROCESSES
    dist.all_gather_object(stale, divided.count_stale())
    figures = {
        "processes": PROCESSES,
        "parameters": sum(parameter.numel() for parameter in divided.model.parameters()),
        "rooms": divided.placement.rooms is not None,
        "steps": STEPS,
        "step_ms": round(step_ms, 2),
        "different_elements": sum(found.values()),
        "differing": [name for name, different in found.items() if different],
        "stale_elements": sum(stale),
    }
    if process == 0:
        Path(folder, "figures").write_text(json.dumps(figures))
    dist.barrier()
    if process == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    divided.train(STEPS)
    synchronize()


def find_differences(divided: Divided, expected: dict[str, torch.Tensor]) -> Iterator[tuple[str, int]]:
    """Yield the name of each parameter and how many of its elements differ; all processes call this."""
    for name, parameter in divided.model.named_parameters():
        yield name, count_different(divided.shards.read_whole(parameter), expected[name])


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def measure(folder: str, width: int) -> dict[str, Any]:
    """Run both processes to their deaths, and return the figures."""
    context = mp.get_context("spawn")
    processes = [context.Process(target=run_process, args=(n, folder, width)) for n in range(PROCESSES)]
    for each in processes:
        each.start()
    first, second = processes
    second.join()
    first.join(DEATH_S)
    saw_death = first.exitcode is not None
    began = time.perf_counter()
    first.kill()
    first.join()
    file = Path(folder, "figures")
    if second.exitcode != -signal.SIGKILL or not file.exists():
        raise RuntimeError(f"process 1 ended with {second.exitcode}, process 0 with {first.exitcode}")
    figures: dict[str, Any] = json.loads(file.read_text())
    return figures | {
        "noticed_the_death": saw_death,
        "killed_in_ms": None if saw_death else round(1e3 * (time.perf_counter() - began), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(folder, SMALL_WIDTH if options.small else WIDTH)
    print(json.dumps(figures))
    if options.json:
        options.json.write_text(json.dumps(figures))
    assert not figures["different_elements"], "the divided model has other bits"
    assert not figures["stale_elements"], "peers would read other values"


if __name__ == "__main__":
    main()
