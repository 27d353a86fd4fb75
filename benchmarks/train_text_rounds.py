"""Train a small GPT on text, in steps or in rounds of inner steps, and print its loss on held-out text.

Steps save the weights that they have at some step, and rounds begin with these.
"""

import argparse
from pathlib import Path

import data  # type: ignore[import-not-found]
import elastane
import judging  # type: ignore[import-not-found]
import schedule  # type: ignore[import-not-found]
import torch
import torch.nn.functional as F
from model import GPT  # type: ignore[import-not-found]

RANKS = 8
WARMUP = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True, help="steps, or inner steps in all rounds")
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="of the model after the first steps")
    parser.add_argument("--first", type=int, required=True, help="the steps that rounds do not make")
    parser.add_argument("--inner-steps", type=int, default=0, help="0: no rounds")
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.9)
    parser.add_argument("--wire", default="full")
    parser.add_argument("--inner-state", default="fresh")
    parser.add_argument("--delay", type=int, default=0)
    options = parser.parse_args()
    run = elastane.join()
    text = data.standard_library(context=64)
    model = GPT(channels=64, layers=2, heads=2, context=64, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
    factor = schedule.warmup_cosine(WARMUP, options.steps)
    rounds = bool(options.inner_steps)
    first = options.first if rounds else 0
    if first:
        model.load_state_dict(torch.load(options.weights))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(first + step))
    outer = elastane.outer.Nesterov(lr=options.outer_lr, momentum=options.outer_momentum)
    run.prepare(
        model,
        optimizer,
        scheduler=scheduler,
        clip_grad_norm=1.0,
        outer=outer if rounds else None,
        inner_state=options.inner_state,
    )
    if rounds:
        for round_ in run.rounds(
            text.train,
            inner_steps=options.inner_steps,
            ranks=RANKS,
            global_batch=options.global_batch,
            until=(options.steps - first) // options.inner_steps,
            wire=options.wire,
            delay=options.delay,
        ):
            for step in round_:
                for inputs, targets in step:
                    step.backward(F.cross_entropy(model(inputs), targets))
    else:
        for step in run.steps(
            text.train,
            global_batch=options.global_batch,
            microbatch=options.global_batch // RANKS,
            until=options.steps,
        ):
            for inputs, targets in step:
                step.backward(F.cross_entropy(model(inputs), targets))
            if step.number == options.first:
                torch.save(model.state_dict(), options.weights)
    run.print("held-out", judging.held_out_loss(model, run.evaluate(text.held_out, microbatch=25)))


if __name__ == "__main__":
    main()
