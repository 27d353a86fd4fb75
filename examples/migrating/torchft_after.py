"""The same training as an elastic run: there are no groups to number and no state to hand over."""

import argparse

import elastane
import torch
import torch.nn.functional as F

from problem import Net, make_dataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()

    run = elastane.join()
    dataset = make_dataset()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(dataset, global_batch=128, microbatch=32, until=f"{options.steps} steps"):
        for points, labels in step:
            loss = F.cross_entropy(model(points), labels)
            step.backward(loss)
        if step.number % 100 == 0:
            run.print(f"step {step.number}: loss {step.loss:.4f}")


if __name__ == "__main__":
    main()
