"""Measure a recipe at one worker against a plain loop and the ``Trainer`` of transformers.

Each of them makes its steps in turns with those of a plain loop in the same process (`paired_steps`), on the
same microbatches and one thread; another plain loop shows what the measurement can tell apart. The ratios
are speeds: above 1 the recipe is faster. ``--first-step`` also measures the time from the command to the
first committed step with an empty cache, beside the import of torch and transformers, which no recipe can do
without. On a machine with a GPU all train on it; ``--set`` makes the model large enough for it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from spread import format_spread

SCRIPT = str(Path(__file__).with_name("train_recipe_paired.py"))
ELASTANE = [sys.executable, "-m", "elastane"]
WARMUP_STEPS = 5
SIZES = ("model.config.hidden_size=192", "model.config.intermediate_size=512")
KINDS = ("recipe", "trainer", "loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--microbatches", type=int, default=4, help="microbatches per step")
    parser.add_argument("--samples", type=int, nargs="+", default=[2, 8], help="samples per microbatch")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of the recipe")
    parser.add_argument("--first-step", action="store_true")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--json", type=Path, help="write the ratios to this file, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        environment = os.environ | {"ELASTANE_HOME": str(work / "home"), "OMP_NUM_THREADS": "1"}
        rows = [measure_ratios(work, environment, samples, options) for samples in options.samples]
        if options.json:
            options.json.write_text(json.dumps(rows))
        if options.first_step:
            first = [measure_first_step(work, environment, n) for n in range(options.repetitions)]
            print(f"first step after the command: {format_spread([one for one, _ in first], 's')}")
            print(f"import of torch and transformers: {format_spread([one for _, one in first], 's')}")


def measure_ratios(
    work: Path, environment: dict[str, str], samples: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Print and return the speeds with this many samples in a microbatch."""
    changes = [
        *SIZES,
        f"training.steps={options.steps}",
        "training.warmup_steps=5",
        f"batch.size={samples * options.microbatches}",
        f"batch.microbatch={samples}",
        "data.held_out=0",
        "checkpoints.every=never",
        *options.set,
    ]
    ejected = work / f"ejected-{samples}"
    sets = [word for change in changes for word in ("--set", change)]
    run([*ELASTANE, "recipe", "eject", "llama-tiny", str(ejected), *sets], work, environment)
    ratios: dict[str, list[float]] = {kind: [] for kind in options.kinds}
    for repetition in range(options.repetitions):
        for kind in options.kinds:
            name = f"{kind}-{samples}-{repetition}"
            begin = (
                [*ELASTANE, "run", "--workers=1", f"--name={name}"] if kind == "recipe" else [sys.executable]
            )
            out = work / f"{name}.json"
            run([*begin, SCRIPT, kind, str(ejected / "recipe.yaml"), str(out)], work, environment)
            pairs = json.loads(out.read_text())[WARMUP_STEPS:]
            ratios[kind].append(median(plain / own for own, plain in pairs))
    plain_s = median(plain for _, plain in pairs)
    print(f"{samples} samples per microbatch, a plain step takes {1e3 * plain_s:.0f} ms")
    for kind in options.kinds:
        print(f"  speed of the {kind}, loop = 1: {format_spread(ratios[kind], digits=3)}")
    row = {"samples": samples, "plain_step_ms": round(1e3 * plain_s, 1), "speed_of_loop": ratios}
    if not {"recipe", "trainer"} <= set(options.kinds):
        return row
    by_trainer = [ours / theirs for ours, theirs in zip(ratios["recipe"], ratios["trainer"], strict=True)]
    print(f"  speed of the recipe, trainer = 1: {format_spread(by_trainer, digits=3)}", flush=True)
    return row


def run(command: list[str], work: Path, environment: dict[str, str]) -> None:
    subprocess.run(command, cwd=work, env=environment, check=True, stdout=subprocess.DEVNULL)


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
