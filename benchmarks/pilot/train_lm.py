"""Train ``examples/lm`` in small: a GPT on the source of Python's standard library, on slow devices."""

import argparse

import elastane
import torch
import torch.nn.functional as F
from lm.data import standard_library  # type: ignore[import-not-found]
from lm.model import GPT  # type: ignore[import-not-found]

from pilot.slow_device import SlowDevice

CONTEXT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()

    run, device = elastane.join(), SlowDevice()
    text = standard_library(context=CONTEXT)
    model = GPT(context=CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
    model, optimizer = run.prepare(model, optimizer, clip_grad_norm=1.0)
    for step in run.steps(text.train, global_batch=24, microbatch=2, until=f"{options.steps} steps"):
        for inputs, targets in step:
            with device.computing(step.number):
                step.backward(F.cross_entropy(model(inputs), targets))


if __name__ == "__main__":
    main()
