"""Train the job as a plain loop that adds gradients pair by pair, in a fixed tree.

This is the simplest program with such sums, which any number of workers could share; a running sum they could
not. Autograd adds the two gradients of a pair, as in the plain loop; sums of pairs wait in memory for their
siblings.
"""

import os

import torch
from torch import Tensor
from torch.utils.data import DataLoader

import job
import ticks
import workload


def main() -> None:
    parsed = job.parse_job()
    size = workload.SIZES[parsed.size]
    if parsed.virtual_ranks % 2:
        raise SystemExit("pairs need an even number of virtual ranks")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tick_writer = ticks.TickWriter(parsed.out)
    model = workload.GPT(size)
    optimizer = workload.make_optimizer(model)
    parameters = list(model.parameters())
    batches = iter(DataLoader(workload.Tokens(size.context), batch_size=size.microbatch))
    for number in range(1, parsed.steps + 1):
        waiting: list[tuple[int, list[Tensor | None]]] = []
        for microbatch in range(parsed.virtual_ranks):
            tick_writer.record_begin(number)
            inputs, targets = next(batches)
            (workload.compute_loss(model, inputs, targets) / parsed.virtual_ranks).backward()
            if microbatch % 2:
                gradients = [parameter.grad for parameter in parameters]
                ranks = 2
                while waiting and waiting[-1][0] == ranks:
                    _, before = waiting.pop()
                    for mine, sibling in zip(gradients, before, strict=True):
                        if mine is not None and sibling is not None:
                            mine.add_(sibling)
                    ranks *= 2
                waiting.append((ranks, gradients))
                for parameter in parameters:
                    parameter.grad = None
        (whole,) = waiting
        for parameter, gradient in zip(parameters, whole[1], strict=True):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
        tick_writer.record_end(number)
    # The end of the plain loop, see train_ddp.py.
    os._exit(0)


if __name__ == "__main__":
    main()
