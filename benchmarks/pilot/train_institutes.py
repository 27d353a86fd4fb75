"""Train one model on the patients of ``examples/research``, each institute on its own, on slow devices."""

import argparse
import functools

import elastane
import torch
import torch.nn.functional as F
from research.measurements import (  # type: ignore[import-not-found]
    CLASSES,
    FEATURES,
    PATIENTS,
    measurements,
    public_measurements,
)
from torch import nn

from pilot.slow_device import SlowDevice

RANKS = 2
"""The virtual ranks of an institute: a second machine takes one of them."""
HIDDEN = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()

    run, device = elastane.join(), SlowDevice()
    model = nn.Sequential(
        *(nn.Linear(FEATURES, HIDDEN), nn.GELU(), nn.Dropout(0.1)),
        *(nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    outer = elastane.outer.Nesterov(lr=0.7, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer, clip_grad_norm=1.0, outer=outer)
    ranks = RANKS * len(PATIENTS)
    for round_ in run.rounds(
        {site: functools.partial(measurements, site) for site in PATIENTS},
        inner_steps=10,
        ranks=ranks,
        global_batch=32 * ranks,
        until=options.rounds,
        wire="int8",
        absent="skip",
    ):
        for step in round_:
            for measured, diagnoses in step:
                with device.computing(round_.number):
                    step.backward(F.cross_entropy(model(measured), diagnoses))

    score = run.evaluate(public_measurements(), microbatch=500)
    model.eval()
    with torch.no_grad():
        for measured, diagnoses in score:
            score.add(right=(model(measured).argmax(1) == diagnoses).sum(), seen=len(diagnoses))
    run.print(f"right for {score.sums['right'] / score.sums['seen']:.1%} of the public patients")


if __name__ == "__main__":
    main()
