"""The same training as an elastic run: the script is the loop, and `elastane run` starts the workers."""

import argparse

import elastane
import torch
import torch.nn.functional as F

from problem import Net, make_dataset


def train(epochs: int) -> None:
    run = elastane.join()
    dataset = make_dataset()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(dataset, global_batch=128, microbatch=32, until=f"{epochs} epochs"):
        for points, labels in step:
            scores = model(points)
            loss = F.cross_entropy(scores, labels)
            step.backward(loss)
            run.log(accuracy=(scores.argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    train(options.epochs)


if __name__ == "__main__":
    main()
