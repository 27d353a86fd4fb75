"""Train a small GPT on the source of Python's standard library.

`train.py` trains it with Elastane, `plain.py` with PyTorch alone; compare the two.
"""

import argparse

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

    torch.manual_seed(0)
    text = data.standard_library(context=128)
    model = GPT(context=128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(options.warmup, options.steps))

    for number, (inputs, targets) in enumerate(data.batches(text.train, 32, options.steps), start=1):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        scheduler.step()
        if number % options.evaluate_every == 0 or number == options.steps:
            print(judging.report(number, model, judging.LocalScore(text.held_out, microbatch=25), text))


if __name__ == "__main__":
    main()
