"""Train the job as one worker of a node under torchft: DDP in the node, torchft's manager between the nodes.

It runs with a Python that has torch and torchft, and need not have Elastane.
"""

from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torchft import Manager, ProcessGroupGloo

import job
import ticks
import workload

TIMEOUT = timedelta(seconds=60)
"""That of torchft by default."""


def make_manager(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Manager:
    def load_state(state: dict[str, dict[str, Tensor]]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    limit = job.read_collective_timeout(TIMEOUT)
    return Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=load_state,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        timeout=limit,
    )


def make_model(bare: torch.nn.Module, manager: Manager) -> DistributedDataParallel:
    """Return the model with gradients that are means over the workers of this node, then over the nodes."""
    # As torchft's own DDP: a node that joins must have the same buckets as the others.
    model = DistributedDataParallel(bare, find_unused_parameters=True)

    def reduce(_: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        gradients = bucket.buffer()
        gradients /= dist.get_world_size()
        dist.all_reduce(gradients)
        # After an error the manager lets no node commit the step.
        manager.allreduce(gradients).wait()
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(gradients)
        return done

    model.register_comm_hook(None, reduce)
    return model


def main() -> None:
    parsed = job.parse_job()
    size = workload.SIZES[parsed.size]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tick_writer = ticks.TickWriter(parsed.out)
    dist.init_process_group("gloo")
    each, rank = dist.get_world_size(), dist.get_rank()
    bare = workload.GPT(size)
    optimizer = workload.make_optimizer(bare)
    manager = make_manager(bare, optimizer)
    model = make_model(bare, manager)
    data = workload.Tokens(size.context)
    while manager.current_step() < parsed.steps:
        optimizer.zero_grad()
        manager.start_quorum()
        # Waits for the quorum: only then is known which microbatches of the step are those of this worker.
        workers = each * manager.num_participants()
        place = each * (manager.participating_rank() or 0) + rank
        number, mine = manager.current_step() + 1, parsed.virtual_ranks // workers
        for microbatch in range(mine):
            tick_writer.record_begin(number)
            first = ((number - 1) * parsed.virtual_ranks + place * mine + microbatch) * size.microbatch
            pairs = [data[index % len(data)] for index in range(first, first + size.microbatch)]
            inputs, targets = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
            with nullcontext() if microbatch == mine - 1 else model.no_sync():
                (workload.compute_loss(model, inputs, targets) / mine).backward()
        if manager.should_commit():
            optimizer.step()
            tick_writer.record_end(number, workers)
        else:
            tick_writer.record_discard(number)


if __name__ == "__main__":
    main()
