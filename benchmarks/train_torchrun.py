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
    parsed = job.parse_job()
    size = workload.SIZES[parsed.size]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tick_writer = ticks.TickWriter(parsed.out)
    dist.init_process_group("gloo", timeout=job.read_collective_timeout(dist.default_pg_timeout))
    world, rank = dist.get_world_size(), dist.get_rank()
    bare = workload.GPT(size)
    optimizer = workload.make_optimizer(bare)
    snapshot = parsed.out / "snapshot.pt"
    done = restore_snapshot(snapshot, bare, optimizer) if snapshot.exists() else 0
    model = DistributedDataParallel(bare)
    data = workload.Tokens(size.context)
    first = done * parsed.virtual_ranks * size.microbatch
    batches = iter(DataLoader(Subset(data, range(first + rank, len(data), world)), size.microbatch))
    mine = parsed.virtual_ranks // world
    for number in range(done + 1, parsed.steps + 1):
        for microbatch in range(mine):
            tick_writer.record_begin(number)
            inputs, targets = next(batches)
            with nullcontext() if microbatch == mine - 1 else model.no_sync():
                (workload.compute_loss(model, inputs, targets) / mine).backward()
        optimizer.step()
        optimizer.zero_grad()
        tick_writer.record_end(number, world)
        if number % SNAPSHOT_EVERY_STEPS == 0 and rank == 0:
            write_snapshot(snapshot, number, bare, optimizer)
    dist.destroy_process_group()


def restore_snapshot(snapshot: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the snapshot into both and return its number of steps."""
    state = torch.load(snapshot)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def write_snapshot(
    snapshot: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    new_file = snapshot.with_suffix(f".{os.getpid()}")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, new_file)
    new_file.replace(snapshot)


if __name__ == "__main__":
    main()
