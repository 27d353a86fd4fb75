"""Measure the usual step of one worker with and without ``--log``; both take turns.

  $ python benchmarks/trackers.py --turns 5 --log tensorboard,mlflow

A step is measured from one line of the ledger to the next, so all that slows training counts.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_ledger

from spread import format_spread

WARMUP_STEPS = 20
SCRIPT = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import elastane

run = elastane.join()
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters()))
inputs = torch.randn(4096, 256, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, inputs[:, :10].argmax(1))
for step in run.steps(data, global_batch=512, microbatch=128, until={steps}):
    for batch, targets in step:
        outputs = model(batch)
        step.backward(nn.functional.cross_entropy(outputs, targets))
        run.log(accuracy=(outputs.argmax(1) == targets).float().mean())
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--log", default="tensorboard,mlflow")
    options = parser.parse_args()
    ratios, plain, tracked = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT.replace("{steps}", str(options.steps)))
        for turn in range(options.turns):
            # Each kind goes first in turn.
            order = ("none", options.log) if turn % 2 else (options.log, "none")
            times = {log: measure_step_ms(script, Path(folder) / f"{turn}-{log}", log) for log in order}
            plain.append(times["none"])
            tracked.append(times[options.log])
            ratios.append(times[options.log] / times["none"])
    print(f"without        {format_spread(plain, 'ms')}")
    print(f"with           {format_spread(tracked, 'ms')}   --log {options.log}")
    print(f"ratio          {format_spread(ratios, digits=3)}   of {options.turns} turns")


def measure_step_ms(script: Path, run_dir: Path, log: str) -> float:
    """Return the median time of a step of a new run."""
    command = [sys.executable, "-m", "elastane.cli.main", "run", "--start", "1", "--workers", "1"]
    options = ["--checkpoint-every", "never", "--log", log, "--name", run_dir.name.replace(",", "-")]
    environment = {**os.environ, "ELASTANE_HOME": str(run_dir.parent / "home")}
    subprocess.run(
        [*command, *options, "--run-dir", str(run_dir), str(script)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    lines = read_ledger(RunDir(run_dir), torn_tail=False)[WARMUP_STEPS:]
    return median(1000 * (after.time - before.time) for before, after in pairwise(lines))


if __name__ == "__main__":
    main()
