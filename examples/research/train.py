"""Train one model on the measurements of three institutes, which must not leave their house.

Each institute takes part with ``elastane join TICKET --site NAME`` when it has machines. Rounds leave out the
ones that are absent. See `docs/sites.md`.
"""

import argparse
import functools

import elastane
import torch
import torch.nn.functional as F
from torch import nn

from measurements import CLASSES, FEATURES, PATIENTS, measurements, public_measurements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--inner-steps", type=int, default=20, help="steps of a virtual rank in a round")
    parser.add_argument("--absent", default="skip", help="wait for an absent institute, or skip it")
    parser.add_argument("--noise", type=float, help="hide single patients by noise, such as 4")
    parser.add_argument("--secret", default="{site}.secret", help="a file of an institute with random bytes")
    options = parser.parse_args()

    privacy = None
    if options.noise is not None:
        privacy = elastane.Privacy(clip=0.3, noise=options.noise, secret=options.secret)
    run = elastane.join()
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = elastane.outer.Nesterov(lr=0.7, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer, clip_grad_norm=1.0, outer=outer)
    for round_ in run.rounds(
        # Only workers of an institute call its function.
        {site: functools.partial(measurements, site) for site in PATIENTS},
        inner_steps=options.inner_steps,
        ranks=len(PATIENTS),
        global_batch=32 * len(PATIENTS),
        until=options.rounds,
        wire="int8",
        absent=options.absent,
        privacy=privacy,
    ):
        for step in round_:
            for measured, diagnoses in step:
                step.backward(F.cross_entropy(model(measured), diagnoses))

    score = run.evaluate(public_measurements(), microbatch=500)
    model.eval()
    with torch.no_grad():
        for measured, diagnoses in score:
            score.add(right=(model(measured).argmax(1) == diagnoses).sum(), seen=len(diagnoses))
    run.print(f"right for {score.sums['right'] / score.sums['seen']:.1%} of the public patients")


if __name__ == "__main__":
    main()
