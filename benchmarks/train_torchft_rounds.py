"""Train the job in rounds as one site under torchft's DiLoCo: each site makes one virtual rank.

It runs with a Python that has torch and torchft, and need not have Elastane.
"""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

import job
import rounds_job
import ticks
import workload

TIMEOUT = timedelta(seconds=60)
"""That of torchft by default."""


def make_manager(model: torch.nn.Module, inner: torch.optim.Optimizer) -> Manager:
    """Return the manager; `DiLoCo` adds the outer optimizer to what a site that joins receives."""

    def load_state(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    limit = job.read_collective_timeout(TIMEOUT)
    return Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=load_state,
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        timeout=limit,
        connect_timeout=limit,
    )


def main() -> None:
    parsed = rounds_job.parse_job()
    size = workload.SIZES[parsed.size]
    site, sites = int(os.environ["REPLICA_GROUP_ID"]), parsed.virtual_ranks
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # Starts the store that the manager looks for.
    dist.init_process_group("gloo")
    tick_writer = ticks.TickWriter(parsed.out)
    model = workload.GPT(size)
    inner = workload.make_optimizer(model)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    manager = make_manager(model, inner)
    data = workload.Tokens(size.context)
    made = 0
    with DiLoCo(manager, [model], inner, outer, sync_every=parsed.inner_steps, use_bucketization=True):
        while manager.current_step() < parsed.steps:
            before = manager.current_step()
            tick_writer.record_begin(rounds_job.UNKNOWN)
            first = (made * sites + site) * parsed.microbatch
            pairs = [data[index % len(data)] for index in range(first, first + parsed.microbatch)]
            inputs, targets = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
            inner.zero_grad()
            workload.compute_loss(model, inputs, targets).backward()
            # The last inner step of a round makes the outer step, unless a site was lost in the exchange.
            inner.step()
            made += 1
            if made % parsed.inner_steps == 0 and manager.current_step() == before:
                tick_writer.record_discard(before + 1)
            elif made % parsed.inner_steps == 0:
                tick_writer.record_end(manager.current_step(), manager.num_participants())


if __name__ == "__main__":
    main()
