"""Train the job under torchrun's elastic agents: DDP, with a snapshot every ten steps to go back to."""

import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

import job
import ticks
import workload

SNAPSHOT_EVERY_STEPS = 10


def main() -> None:
    asked = job.parsed()
    size = workload.SIZES[asked.size]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tick = ticks.TickWriter(asked.out)
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    bare = workload.GPT(size)
    optimizer = workload.optimizer_for(bare)
    snapshot = asked.out / "snapshot.pt"
    done = restored(snapshot, bare, optimizer) if snapshot.exists() else 0
    model = DistributedDataParallel(bare)
    data = workload.Tokens(size.context)
    first = done * asked.virtual_ranks * size.microbatch
    batches = iter(DataLoader(Subset(data, range(first + rank, len(data), world)), size.microbatch))
    mine = asked.virtual_ranks // world
    for number in range(done + 1, asked.steps + 1):
        for microbatch in range(mine):
            tick.begun(number)
            inputs, targets = next(batches)
            with nullcontext() if microbatch == mine - 1 else model.no_sync():
                (workload.loss_of(model, inputs, targets) / mine).backward()
        optimizer.step()
        optimizer.zero_grad()
        tick.done(number)
        if number % SNAPSHOT_EVERY_STEPS == 0 and rank == 0:
            write(snapshot, number, bare, optimizer)
    dist.destroy_process_group()


def restored(snapshot: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the snapshot into both and return its number of steps."""
    state = torch.load(snapshot)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def write(snapshot: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    fresh = snapshot.with_suffix(f".{os.getpid()}")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, fresh)
    fresh.replace(snapshot)


if __name__ == "__main__":
    main()
