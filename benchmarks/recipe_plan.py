"""Compare the plan of a recipe with its runs: memory and speed at 1 and 2 workers of this machine.

Each repetition plans first, which also measures the speed of this machine, and then trains the same recipe at
each number of workers. Memory is what a worker has of its own at its peak: anonymous pages that it has
written, and its part of the memory that workers share. That of a recipe with a negligible model is
subtracted: Python and libraries.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from spread import format_spread

ELASTANE = [sys.executable, "-m", "elastane"]
WORKERS = (1, 2)
WARMUP_STEPS = 2
EVERY_S = 0.1
SIZES = ("hidden_size=384", "intermediate_size=1024", "num_hidden_layers=6")
RETURNED_AT_ONCE = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
NEGLIGIBLE = ("hidden_size=8", "intermediate_size=8", "num_hidden_layers=1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--bandwidth", default="5GB", help="of the memory that workers share, per second")
    parser.add_argument(
        "--trim", action="store_true", help="the C library returns freed memory at once: what tensors need"
    )
    options = parser.parse_args()
    if options.steps < WARMUP_STEPS + 2:
        parser.error(f"--steps: write {WARMUP_STEPS + 2} or more")
    memory: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    speed: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.steps, RETURNED_AT_ONCE if options.trim else {})
        libraries = bench.train(1, NEGLIGIBLE)[0]
        for _ in range(options.repetitions):
            plan = bench.plan(options.bandwidth)
            for size in plan["sizes"]:
                workers = size["workers"]
                peak, step_s = bench.train(workers, SIZES)
                parts = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes")
                planned = sum(size[part] for part in parts)
                memory[workers].append(planned / (peak - libraries))
                speed[workers].append(size["tokens_per_s"] / (plan["tokens_per_step"] / step_s))
                measured = f"{(peak - libraries) / 1e6:.0f} MB measured"
                print(f"{workers} worker(s): memory {planned / 1e6:.0f} MB planned, {measured}", end="; ")
                print(f"step {size['step_s']:.3f} s planned, {step_s:.3f} s measured", flush=True)
    for workers in WORKERS:
        print(
            f"{workers} worker(s), planned / measured: memory {format_spread(memory[workers])}, "
            f"tokens per second {format_spread(speed[workers])}"
        )


class Bench:
    """Plans and trains the recipe in a folder.

    Args:
        work: the folder.
        steps: of each run.
        variables: of the environment of each run.
    """

    def __init__(self, work: Path, steps: int, variables: Mapping[str, str]) -> None:
        self._work, self._steps, self._runs = work, steps, 0
        own = {"ELASTANE_HOME": str(work / "home"), "OMP_NUM_THREADS": "1"}
        self._environment = os.environ | own | dict(variables)

    def plan(self, bandwidth: str) -> Any:
        options = ("--devices", str(WORKERS[-1]), "--bandwidth", bandwidth, "--json")
        command = [*ELASTANE, "recipe", "plan", "llama-tiny", *self._list_changes(SIZES), *options]
        done = subprocess.run(
            command, cwd=self._work, env=self._environment, check=True, stdout=subprocess.PIPE
        )
        return json.loads(done.stdout)

    def train(self, workers: int, sizes: Sequence[str]) -> tuple[int, float]:
        """Train; return the largest memory of a worker in bytes, and the median time of a step in seconds."""
        self._runs += 1
        name = f"run-{self._runs}"
        options = ("--workers", f"{workers}:{workers}", "--name", name)
        command = [*ELASTANE, "recipe", "run", "llama-tiny", *options, *self._list_changes(sizes)]
        peak = 0
        with subprocess.Popen(
            command, cwd=self._work, env=self._environment, stdout=subprocess.DEVNULL
        ) as process:
            while process.poll() is None:
                for pid in self._list_workers(name):
                    peak = max(peak, measure_own_bytes(pid))
                time.sleep(EVERY_S)
        if process.returncode:
            sys.exit(f"the run ended with code {process.returncode}")
        lines = (self._work / "home" / "runs" / name / "ledger.jsonl").read_text().splitlines()
        ends = [json.loads(line)["time"] for line in lines]
        return peak, median(after - before for before, after in pairwise(ends[WARMUP_STEPS - 1 :]))

    def _list_changes(self, sizes: Sequence[str]) -> list[str]:
        changes = [
            *(f"model.config.{size}" for size in sizes),
            f"training.steps={self._steps}",
            "training.warmup_steps=1",
            "batch.size=8",
            "data.held_out=0",
            "data.vocabulary=4096",
            "checkpoints.every=never",
        ]
        return [word for change in changes for word in ("--set", change)]

    def _list_workers(self, name: str) -> list[int]:
        """Return the workers of a run: the processes that write a worker's log."""
        logs = str((self._work / "home" / "runs" / name / "logs").resolve())
        return [
            int(entry.name)
            for entry in Path("/proc").glob("[0-9]*")
            if read_link(entry / "fd" / "1").startswith(f"{logs}/worker-")
        ]


def read_link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        # The process has ended, or belongs to another user.
        return ""


def measure_own_bytes(pid: int) -> int:
    """Return the bytes of a process that it does not share: see the top of this file; 0: it has ended."""
    own, shared = 0, False
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except OSError:
        return 0
    is_file = False
    for line in lines:
        field, _, rest = line.partition(" ")
        if not field.endswith(":"):
            path = line.split(maxsplit=5)[5:]
            shared = bool(path) and path[0].startswith("/memfd:")
            is_file = bool(path) and path[0].startswith("/") and not shared
        elif (field == "Pss:" and shared) or (field == "Private_Dirty:" and not shared and not is_file):
            own += int(rest.split()[0]) * 1024
    return own


if __name__ == "__main__":
    main()
