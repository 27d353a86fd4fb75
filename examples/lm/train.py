"""Train a small GPT on the source of Python's standard library.

`train.py` trains it with Elastane, `plain.py` with PyTorch alone; compare the two.
"""

import argparse

import elastane
import torch
import torch.nn.functional as F

import data
import judging
from model import GPT
from schedule import warmup_cosine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250, help="optimizer steps of 32 windows of 128 bytes")
    parser.add_argument("--lr", type=float, default=4e-3, help="highest learning rate")
    parser.add_argument("--warmup", type=int, default=20, help="steps until the highest learning rate")
    parser.add_argument("--evaluate-every", type=int, default=50, help="steps between two evaluations")
    options = parser.parse_args()

    run = elastane.join()
    text = data.standard_library(context=128)
    model = GPT(context=128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(options.warmup, options.steps))

    model, optimizer = run.prepare(model, optimizer, scheduler=scheduler, clip_grad_norm=1.0)
    for step in run.steps(text.train, global_batch=32, microbatch=4, until=f"{options.steps} steps"):
        for inputs, targets in step:
            step.backward(F.cross_entropy(model(inputs), targets))
        if step.number % options.evaluate_every == 0 or step.number == options.steps:
            run.print(judging.report(step.number, model, run.evaluate(text.held_out, microbatch=25), text))


if __name__ == "__main__":
    main()
