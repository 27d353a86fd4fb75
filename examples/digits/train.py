"""Train a small convolutional network to read handwritten digits.

`train.py` trains it with Elastane, `plain.py` with PyTorch alone; compare the two.
"""

import argparse

import elastane
import torch
import torch.nn.functional as F

import data
import judging
from model import convolutional


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15, help="times every training image is seen")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate")
    options = parser.parse_args()

    run = elastane.join()
    digits = data.digits()
    model = convolutional()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.01)

    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(digits.train, global_batch=64, microbatch=16, until=f"{options.epochs} epochs"):
        for images, labels in step:
            step.backward(F.cross_entropy(model(images), labels))
    run.print(judging.report(model, run.evaluate(digits.held_out, microbatch=36)))


if __name__ == "__main__":
    main()
