"""Train a forecast of sales on the machines that a shop can spare.

They are at several sites, and join and leave by the calendar of `season.py`; see README.md.
"""

import argparse

import elastane
import torch
from torch import nn

from model import Forecaster
from sales import find_baseline, sales


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6, help="times every sale is seen")
    parser.add_argument("--inner-steps", type=int, default=25, help="steps of a virtual rank in a round")
    options = parser.parse_args()

    run = elastane.join()
    shop = sales()
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    outer = elastane.outer.Nesterov(lr=0.7, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer, clip_grad_norm=1.0, outer=outer)
    compute_loss = nn.PoissonNLLLoss()
    for round_ in run.rounds(
        shop.train,
        inner_steps=options.inner_steps,
        ranks=4,
        global_batch=256,
        until=f"{options.epochs} epochs",
        wire="int8",
    ):
        for step in round_:
            for numbers, products, units in step:
                step.backward(compute_loss(model(numbers, products), units))

    score = run.evaluate(shop.held_out, microbatch=2000)
    with torch.no_grad():
        for numbers, products, units in score:
            wrong = (model(numbers, products).exp() - units).abs().sum()
            score.add(wrong=wrong, seen=len(units))
    error = score.sums["wrong"] / score.sums["seen"]
    run.print(f"wrong by {error:.2f} units a day (the mean of each product: {find_baseline(shop):.2f})")


if __name__ == "__main__":
    main()
