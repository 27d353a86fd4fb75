"""Compare the loss of rounds with that of steps after equal tokens: a small GPT, the same samples and seeds.

Each contestant trains ``train_text_rounds.py`` with one worker, because the number of workers does not change
a byte.
"""

import argparse
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import mean

from elastane_run import ELASTANE
from job import HERE
from machine import describe_commit, find_cpu
from text import format_table

WORD = "held-out"


def train(options: list[str], seed: int, folder: Path) -> float:
    """Return the loss on held-out text, in nats per byte."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--inner-steps", type=int, default=50)
    parser.add_argument("--wires", nargs="+", default=["full", "int8"])
    parser.add_argument("--climbs", type=int, nargs="*", default=[10], help="warm-ups in each round")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    contestants = {"steps": list[str]()}
    for wire in options.wires:
        fresh = [f"--inner-steps={options.inner_steps}", f"--wire={wire}"]
        contestants[f"rounds, {wire}"] = fresh
        contestants[f"rounds, {wire}, averaged state"] = [*fresh, "--inner-state=averaged"]
        contestants[f"rounds, {wire}, a round later"] = [*fresh, "--delay=1"]
        for climb in options.climbs:
            contestants[f"rounds, {wire}, {climb} steps of warm-up in each"] = [*fresh, f"--climb={climb}"]
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for seed in range(options.seeds):
        for name, chosen in contestants.items():
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(train([f"--steps={options.steps}", *chosen], seed, Path(folder)))
            print(f"seed {seed}, {name}: {found[name][-1]:.4f}", flush=True)
    print(f"\n{find_cpu()}, commit {describe_commit()}, {options.steps} steps, H = {options.inner_steps}\n")
    rows = [
        [name, *(f"{loss:.4f}" for loss in losses), f"{mean(losses) / mean(found['steps']) - 1:+.1%}"]
        for name, losses in found.items()
    ]
    print(format_table(["", *(f"seed {n}" for n in range(options.seeds)), "mean, against steps"], rows))


if __name__ == "__main__":
    main()
