"""Train the job with HSDP, as torch has it: two copies of a model that two processes divide.

Every microbatch is scattered to the shards, as in a worker of Elastane, and the copies are added with the
last one of a step.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader, DistributedSampler

import job
import ticks
import workload

SHARDS = 2


def main() -> None:
    parsed = job.parse_job()
    size = workload.SIZES[parsed.size]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tick_writer = ticks.TickWriter(parsed.out)
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard"))
    model = workload.GPT(size)
    workload.divide(model, mesh)
    assert isinstance(model, FSDPModule), "fully_shard has made it one"
    optimizer = workload.make_optimizer(model)
    data = workload.Tokens(size.context)
    sampler: DistributedSampler[workload.Tokens] = DistributedSampler(data, num_replicas=world, rank=rank)
    batches = iter(DataLoader(data, batch_size=size.microbatch, sampler=sampler))
    mine = parsed.virtual_ranks // world
    for number in range(1, parsed.steps + 1):
        for microbatch in range(mine):
            tick_writer.record_begin(number)
            inputs, targets = next(batches)
            model.set_requires_all_reduce(microbatch == mine - 1)
            (workload.compute_loss(model, inputs, targets) / mine).backward()
        optimizer.step()
        optimizer.zero_grad()
        tick_writer.record_end(number)
    # Without destroy_process_group, as in `train_ddp`.
    os._exit(0)


if __name__ == "__main__":
    main()
