"""Compare the loss of rounds with that of steps after equal tokens: a small GPT, begun with the same steps.

Each contestant trains ``train_text_rounds.py`` with one worker, because the number of workers does not change
a byte. Rounds begin with the weights that steps have after ``--first`` of them, and read as many other
samples as the rest of the steps. Their samples come in another order.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import mean

from elastane_run import ELASTANE
from job import HERE
from machine import describe_commit, find_cpu
from rounds_job import WIRES
from text import format_table

WORD = "held-out"
STEPS = "steps"


def train(options: Sequence[str], seed: int, folder: Path) -> float:
    """Return the loss on held-out text, in nats per byte."""
    folder.mkdir()
    command = [
        *ELASTANE,
        "run",
        "--workers=1",
        f"--seed={seed}",
        "--checkpoint-every=never",
        f"--run-dir={folder / 'run'}",
        str(HERE / "train_text_rounds.py"),
        *options,
    ]
    variables = {
        "ELASTANE_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join(
            [str(HERE.parent / "examples" / "lm"), os.environ.get("PYTHONPATH", "")]
        ),
    }
    done = subprocess.run(
        command, env={**os.environ, **variables}, check=True, capture_output=True, text=True
    )
    words = done.stdout.split()
    return float(words[words.index(WORD) + 1])


def list_contestants(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the options of the script for each contestant, by name; steps come first."""
    contestants = {STEPS: [f"--lr={options.lr}"]}
    choices = product(options.wires, options.inner_states, options.delays, options.outers, options.factors)
    for wire, state, delay, (outer_lr, momentum), factor in choices:
        if delay and state != "fresh":
            continue
        name = f"rounds, {wire}, {state} state, outer rate {outer_lr} and momentum {momentum}"
        if delay:
            name += ", a round later"
        if factor != 1:
            name += f", {factor} times the inner rate"
        contestants[name] = [
            f"--lr={options.lr * factor}",
            f"--inner-steps={options.inner_steps}",
            f"--wire={wire}",
            f"--inner-state={state}",
            f"--delay={delay}",
            f"--outer-lr={outer_lr}",
            f"--outer-momentum={momentum}",
        ]
    return contestants


def parse_outer(text: str) -> tuple[float, float]:
    lr, momentum = map(float, text.split(","))
    return lr, momentum


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the losses of each contestant, one for each seed."""
    contestants = list_contestants(options)
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            common = [
                *(f"--steps={options.steps}", f"--first={options.first}"),
                f"--global-batch={options.global_batch}",
                f"--weights={folder}/weights.pt",
            ]
            for number, (name, chosen) in enumerate(contestants.items()):
                began_s = time.monotonic()
                found[name].append(train([*common, *chosen], seed, Path(folder) / str(number)))
                took_s = time.monotonic() - began_s
                print(f"seed {seed}, {name}: {found[name][-1]:.4f}, {took_s:.0f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--first", type=int, default=500, help="the steps before the rounds")
    parser.add_argument("--global-batch", type=int, default=32, help="windows of a step, of 64 bytes")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--inner-steps", type=int, default=50)
    parser.add_argument(
        "--outers", nargs="+", type=parse_outer, default=[(0.7, 0.9)], help="each as RATE,MOMENTUM"
    )
    parser.add_argument("--factors", nargs="+", type=float, default=[1.0], help="of the inner rate")
    parser.add_argument("--wires", nargs="+", default=["int8"], choices=WIRES)
    parser.add_argument("--inner-states", nargs="+", default=["fresh", "averaged"], help="as of run.prepare")
    parser.add_argument("--delays", type=int, nargs="+", default=[0], choices=[0, 1])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found = measure(options)
    print(f"\n{find_cpu()}, commit {describe_commit()}")
    print(f"{options.steps} steps of {options.global_batch} windows, rate {options.lr}")
    print(f"rounds after {options.first} steps, H = {options.inner_steps}\n")
    rows = []
    for name, losses in found.items():
        ratios = [loss / other - 1 for loss, other in zip(losses, found[STEPS], strict=True)]
        rows.append([name, *(f"{loss:.4f}" for loss in losses), f"{mean(ratios):+.2%}"])
    print(format_table(["", *(f"seed {n}" for n in range(options.seeds)), "against steps"], rows))


if __name__ == "__main__":
    main()
