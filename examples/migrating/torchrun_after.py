"""The same training as an elastic run, which writes its own checkpoints."""

import argparse

import elastane
import torch
import torch.nn.functional as F

from problem import Net, make_dataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    run = elastane.join()
    dataset = make_dataset()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(dataset, global_batch=128, microbatch=32, until=f"{options.epochs} epochs"):
        for points, labels in step:
            loss = F.cross_entropy(model(points), labels)
            step.backward(loss)
        if step.last:
            run.print(f"epoch {step.epoch + 1}: loss {step.loss:.4f}")


if __name__ == "__main__":
    main()
