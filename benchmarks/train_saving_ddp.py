"""Train the job with DDP or as a plain loop, and save its state at intervals with PyTorch's own functions.

The script uses in turn ``dcp.save``, ``dcp.async_save``, and no save at all while an unrelated process writes
the same bytes (`writer.py`).
"""

import os
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import job
import pausing
import ticks
import workload
import writer

KINDS = ("dcp.save", "dcp.async_save", "bystander")


def main() -> None:
    parsed = job.parse_job()
    size = workload.SIZES[parsed.size]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tick_writer = ticks.TickWriter(parsed.out)
    bare = workload.GPT(size)
    model: nn.Module = bare
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
    saving = Saving(parsed.out, bare, optimizer, distributed=rank >= 0)
    for number in range(1, parsed.steps + 1):
        for microbatch in range(mine):
            inputs, targets = next(batches)
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = microbatch == mine - 1
            (workload.compute_loss(model, inputs, targets) / mine).backward()
        optimizer.step()
        optimizer.zero_grad()
        tick_writer.record_end(number)
        kind = pausing.find_due_kind(number, len(KINDS))
        if kind is not None:
            saving.save_now(KINDS[kind], number)
    saving.settle()
    os._exit(0)


class Saving:
    """PyTorch's functions that save the state; the asynchronous one copies to memory that stays allocated."""

    def __init__(
        self, out: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, distributed: bool
    ) -> None:
        self.out, self.model, self.optimizer = out, model, optimizer
        self.distributed = distributed
        # A separate group for the background work, as in PyTorch's recipe for async_save.
        self.group = dist.new_group(backend="gloo") if distributed else None
        self.stager = DefaultStager(StagingOptions(False, False, False, False))
        self.under_way: Future[Any] | None = None
        warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")

    def save_now(self, kind: str, step: int) -> None:
        if kind == "bystander":
            writer.request_write(self.out, step)
            return
        self.settle()
        place = self.out / kind
        if kind == "dcp.save":
            save(self.state(), checkpoint_id=place, no_dist=not self.distributed)
            return
        found = async_save(
            self.state(),
            checkpoint_id=place,
            process_group=self.group,
            async_stager=self.stager,
            no_dist=not self.distributed,
        )
        assert isinstance(found, Future)
        self.under_way = found

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
        }

    def settle(self) -> None:
        if self.under_way is not None:
            self.under_way.result()
            self.under_way = None


if __name__ == "__main__":
    main()
