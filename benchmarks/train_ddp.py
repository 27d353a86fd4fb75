"""Train the job with DistributedDataParallel over Gloo, or as a plain loop if no RANK is set.

The loop accumulates the microbatches of a step and reduces them with the last backward pass, as DDP's manual
recommends.
"""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import job
import ticks
import workload


def main() -> None:
    parsed = job.parse_job()
    size = workload.SIZES[parsed.size]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tick_writer = ticks.TickWriter(parsed.out)
    model: nn.Module = workload.GPT(size)
    optimizer = workload.make_optimizer(model)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "-1"))
    if rank >= 0:
        dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=world)
        model = DistributedDataParallel(model)
    data = workload.Tokens(size.context)
    sampler: DistributedSampler[workload.Tokens] = DistributedSampler(
        data, num_replicas=world, rank=max(rank, 0)
    )
    batches = iter(DataLoader(data, batch_size=size.microbatch, sampler=sampler))
    mine = parsed.virtual_ranks // world
    for number in range(1, parsed.steps + 1):
        for microbatch in range(mine):
            tick_writer.record_begin(number)
            inputs, targets = next(batches)
            last = microbatch == mine - 1
            no_sync = (
                model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext()
            )
            with no_sync:
                (workload.compute_loss(model, inputs, targets) / mine).backward()
        optimizer.step()
        optimizer.zero_grad()
        tick_writer.record_end(number)
    # Without destroy_process_group: after it a process hung at its exit (torch 2.13, Gloo).
    os._exit(0)


if __name__ == "__main__":
    main()
