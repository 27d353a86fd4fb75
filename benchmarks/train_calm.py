"""Train the job with Elastane, with a pause in each step: the processor is idle as if a device computed."""

import argparse
import time

import elastane
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

GLOBAL_BATCH, MICROBATCH = 32, 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=0.02, help="of each microbatch, in seconds")
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    run = elastane.join()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = run.prepare(model, optimizer)
    data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
    steps = run.steps(data, global_batch=GLOBAL_BATCH, microbatch=MICROBATCH, until=f"{options.steps} steps")
    for step in steps:
        for batch, targets in step:
            time.sleep(options.pause)
            step.backward(functional.cross_entropy(model(batch), targets))


if __name__ == "__main__":
    main()
