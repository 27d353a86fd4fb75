"""Train a fraud detector on machines of several clouds, with little bandwidth between them.

Each of the virtual ranks makes inner steps by itself; the clouds exchange once in a round. See
`docs/sites.md`.
"""

import argparse

import elastane
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score

import data
from model import Scorer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6, help="times every payment is seen")
    parser.add_argument("--inner-steps", type=int, default=25, help="steps of a virtual rank in a round")
    parser.add_argument("--ranks", type=int, default=4, help="virtual ranks; the most workers that can train")
    parser.add_argument("--wire", default="int8", help="full, bf16, int8 or int4")
    options = parser.parse_args()

    run = elastane.join()
    payments = data.payments()
    model = Scorer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)

    outer = elastane.outer.Nesterov(lr=0.7, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer, clip_grad_norm=1.0, outer=outer)
    for round_ in run.rounds(
        payments.train,
        inner_steps=options.inner_steps,
        ranks=options.ranks,
        global_batch=256,
        until=f"{options.epochs} epochs",
        wire=options.wire,
    ):
        for step in round_:
            for numbers, kinds, frauds in step:
                step.backward(F.binary_cross_entropy_with_logits(model(numbers, kinds), frauds))

    score = run.evaluate(payments.held_out, microbatch=1000)
    model.eval()
    with torch.no_grad():
        for numbers, kinds, frauds in score:
            score.outputs.add(scores=model(numbers, kinds), frauds=frauds)
    precision = average_precision_score(
        torch.cat(score.outputs["frauds"]).numpy(), torch.cat(score.outputs["scores"]).numpy()
    )
    run.print(f"average precision {precision:.3f} (guesses: {data.baseline(payments.held_out):.3f})")


if __name__ == "__main__":
    main()
