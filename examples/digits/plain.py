"""Train a small convolutional network to read handwritten digits.

`train.py` trains it with Elastane, `plain.py` with PyTorch alone; compare the two.
"""

import argparse

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

    torch.manual_seed(0)
    digits = data.digits()
    model = convolutional()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.01)

    loader = torch.utils.data.DataLoader(digits.train, batch_size=64, shuffle=True, drop_last=True)
    for _ in range(options.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
    print(judging.report(model, judging.LocalScore(digits.held_out, microbatch=36)))


if __name__ == "__main__":
    main()
