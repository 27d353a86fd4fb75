"""Train a small GPT on text, in steps or in rounds of inner steps, and print its loss on held-out text."""

import argparse

import data  # type: ignore[import-not-found]
import elastane
import judging  # type: ignore[import-not-found]
import schedule  # type: ignore[import-not-found]
import torch
import torch.nn.functional as F
from model import GPT  # type: ignore[import-not-found]

GLOBAL_BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True, help="steps, or inner steps in all rounds")
    parser.add_argument("--inner-steps", type=int, default=0, help="0: no rounds")
    parser.add_argument("--wire", default="full")
    parser.add_argument("--inner-state", default="fresh")
    parser.add_argument("--delay", type=int, default=0)
    parser.add_argument("--climb", type=int, default=0, help="inner steps of a warm-up in each round")
    parser.add_argument("--lr", type=float, default=3e-3)
    options = parser.parse_args()
    run = elastane.join()
    text = data.standard_library(context=64)
    model = GPT(channels=64, layers=2, heads=2, context=64, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
    factor = schedule.warmup_cosine(100, options.steps)

    def climb(step: int) -> float:
        """Return the factor of the learning rate; the moments of Adam begin anew in each round."""
        within: float = (step % options.inner_steps + 1) / options.climb
        return float(factor(step)) * min(1.0, within)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, climb if options.climb else factor)
    rounds = bool(options.inner_steps)
    outer = elastane.outer.Nesterov(lr=0.7, momentum=0.9) if rounds else None
    run.prepare(
        model,
        optimizer,
        scheduler=scheduler,
        clip_grad_norm=1.0,
        outer=outer,
        inner_state=options.inner_state,
    )
    if rounds:
        for round_ in run.rounds(
            text.train,
            inner_steps=options.inner_steps,
            ranks=8,
            global_batch=GLOBAL_BATCH,
            until=options.steps // options.inner_steps,
            wire=options.wire,
            delay=options.delay,
        ):
            for step in round_:
                for inputs, targets in step:
                    step.backward(F.cross_entropy(model(inputs), targets))
    else:
        for step in run.steps(text.train, global_batch=GLOBAL_BATCH, microbatch=4, until=options.steps):
            for inputs, targets in step:
                step.backward(F.cross_entropy(model(inputs), targets))
    run.print("held-out", judging.held_out_loss(model, run.evaluate(text.held_out, microbatch=25)))


if __name__ == "__main__":
    main()
