"""Train ``examples/digits`` in small: a convolutional network that reads digits, on slow devices."""

import argparse

import elastane
import torch
import torch.nn.functional as F
from digits.data import digits  # type: ignore[import-not-found]
from digits.model import convolutional  # type: ignore[import-not-found]

from pilot.slow_device import SlowDevice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()

    run, device = elastane.join(), SlowDevice()
    model = convolutional()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(digits().train, global_batch=48, microbatch=4, until=f"{options.steps} steps"):
        for images, labels in step:
            with device.computing(step.number):
                step.backward(F.cross_entropy(model(images), labels))


if __name__ == "__main__":
    main()
