"""Measure a recipe at one worker against a plain loop and the ``Trainer`` of transformers, in turns.

All three train the same model with the same microbatches on one thread. The ratios are speeds: above 1 the
recipe is faster. ``--first-step`` also measures the time from the command to the first committed step with an
empty cache, beside the import of torch and transformers, which no recipe can do without.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from spread import format_spread

HERE = Path(__file__).parent
ELASTANE = [sys.executable, "-m", "elastane"]
WARMUP_STEPS = 5
SIZES = ("hidden_size=192", "intermediate_size=512")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--microbatches", type=int, default=4, help="microbatches of 2 samples per step")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--first-step", action="store_true")
    options = parser.parse_args()
    changes = [
        *(f"model.config.{size}" for size in SIZES),
        f"training.steps={options.steps}",
        "training.warmup_steps=5",
        f"batch.size={2 * options.microbatches}",
        "data.held_out=0",
        "checkpoints.every=never",
    ]
    seconds: dict[str, list[float]] = {"recipe": [], "loop": [], "trainer": []}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        environment = os.environ | {"ELASTANE_HOME": str(work / "home"), "OMP_NUM_THREADS": "1"}
        sets = [word for change in changes for word in ("--set", change)]
        run([*ELASTANE, "recipe", "eject", "llama-tiny", str(work / "ejected"), *sets], work, environment)
        for repetition in range(options.repetitions):
            # In turns, so that other load on the machine affects all alike.
            seconds["recipe"].append(measure_recipe(work, environment, sets, f"run-{repetition}"))
            for kind in ("loop", "trainer"):
                seconds[kind].append(measure_plain(work, environment, kind))
            print({kind: [round(one, 4) for one in found] for kind, found in seconds.items()}, flush=True)
        for kind in ("loop", "trainer"):
            ratios = [theirs / ours for ours, theirs in zip(seconds["recipe"], seconds[kind], strict=True)]
            print(f"speed of the recipe, {kind} = 1: {format_spread(ratios, digits=3)}")
        if options.first_step:
            first = [measure_first_step(work, environment, n) for n in range(options.repetitions)]
            print(f"first step after the command: {format_spread([one for one, _ in first], 's')}")
            print(f"import of torch and transformers: {format_spread([one for _, one in first], 's')}")


def run(command: list[str], work: Path, environment: dict[str, str]) -> None:
    subprocess.run(command, cwd=work, env=environment, check=True, stdout=subprocess.DEVNULL)


def measure_recipe(work: Path, environment: dict[str, str], sets: list[str], name: str) -> float:
    command = [*ELASTANE, "recipe", "run", "llama-tiny", "--workers", "1", "--name", name, *sets]
    run(command, work, environment)
    lines = (work / "home" / "runs" / name / "ledger.jsonl").read_text().splitlines()
    return compute_step_s([json.loads(line)["time"] for line in lines])


def measure_plain(work: Path, environment: dict[str, str], kind: str) -> float:
    out = work / "ends.json"
    script = str(HERE / "train_recipe_plain.py")
    run([sys.executable, script, kind, str(work / "ejected" / "recipe.yaml"), str(out)], work, environment)
    return compute_step_s(json.loads(out.read_text()))


def compute_step_s(ends: list[float]) -> float:
    """Return the median duration of the steps after the warm-up, in seconds."""
    return median(after - before for before, after in pairwise(ends[WARMUP_STEPS:]))


def measure_first_step(work: Path, environment: dict[str, str], number: int) -> tuple[float, float]:
    """Return seconds from the command to the first committed step, and of the import, side by side."""
    began = time.time()
    subprocess.run([sys.executable, "-c", "import torch, transformers.generation.utils"], check=True)
    imported = time.time()
    name = f"first-{number}"
    fresh = environment | {"XDG_CACHE_HOME": str(work / f"cache-{number}")}
    small = ["--set", "training.steps=1", "--set", "training.warmup_steps=0", "--set", "data.held_out=0"]
    run([*ELASTANE, "recipe", "run", "llama-tiny", "--name", name, *small], work, fresh)
    ledger = (work / "home" / "runs" / name / "ledger.jsonl").read_text().splitlines()
    return json.loads(ledger[0])["time"] - imported, imported - began


if __name__ == "__main__":
    main()
