"""A process outside any run that starts as a joining worker does: imports, model, one batch.

Its effect on a run is the cost of sharing a machine. A join can be judged only in comparison with that cost.
"""

import sys

import torch

import workload


def main(name: str) -> None:
    size = workload.SIZES[name]
    torch.set_num_threads(1)
    model = workload.GPT(size)
    optimizer = workload.make_optimizer(model)
    data = workload.Tokens(size.context)
    pairs = [data[index] for index in range(size.microbatch)]
    inputs, targets = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
    workload.compute_loss(model, inputs, targets).backward()
    optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
