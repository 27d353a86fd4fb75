"""Measure this commit and another one in turns: the usual step, and the coordinator's death.

Two pages of figures that were taken on different days differ by more than two commits do. Here the two
commits and a baseline make their steps in turns, one step each. The harness is this commit's for both; it
reads only files that the training script writes, and counts the lines of the ledger.

    git worktree add --detach ../other f8662455
    python benchmarks/commits.py ../other
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import ddp
import machine
import ticks
from coordinator_death import AFTERWARDS_STEPS, IMPORTS
from elastane_run import NO_VARIABLES, ElastaneRun
from job import HERE, Job
from join import measure_disturbance
from processes import Processes, exit_on_sigterm, wait_until
from spread import format_spread
from text import format_table
from turns import begin_turns, count_waiting, make_rings, read_steps
from usual_step import VIRTUAL_RANKS, compute_ratios

WARMUP, TURNS = 4, 30
CALM_STEPS = 10
DEATHS = 3


class Steps(NamedTuple):
    """Ratios of steps that were made one after the other: the medians over all turns."""

    other_to_baseline: float
    this_to_baseline: float
    this_to_other: float


@dataclass(frozen=True)
class Commit:
    """A working tree of Elastane.

    Args:
        name: the commit, as git describes it.
        source: the folder with the package.
    """

    name: str
    source: Path

    @classmethod
    def find(cls, tree: Path) -> "Commit":
        """Return the commit of a working tree.

        Raises:
            SystemExit: Python does not import Elastane from this tree.
        """
        source = (tree / "src").resolve()
        found = subprocess.run(
            [sys.executable, "-c", "import elastane; print(elastane.__file__)"],
            env={**os.environ, "PYTHONPATH": str(source)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        if not Path(found).is_relative_to(source):
            raise SystemExit(f"Python imports {found} in place of the package in {source}")
        return cls(machine.describe_commit(tree), source)

    def start_run(self, job: Job, workers: int, environment: Mapping[str, str] = NO_VARIABLES) -> ElastaneRun:
        """Return a run of this commit; the harness must only count its steps, because formats differ."""
        variables = {**environment, "PYTHONPATH": str(self.source)}
        return ElastaneRun(job, job.out, start=workers, most=workers, environment=variables)


def measure_steps(commits: list[Commit], baseline: str, size: str, workers: int, work: Path) -> Steps:
    """Return the medians of the steps that a baseline and two commits make in turns, as ratios."""
    names = [baseline, *(commit.name for commit in commits)]
    folder = work / "turns"
    environments = make_rings(folder, names, workers)
    jobs = [Job(size, 1_000_000, VIRTUAL_RANKS, work / name) for name in names]
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(work / "baseline-logs"))
        ddp.start(processes, jobs[0], workers, baseline, **environments[0])
        for commit, job, environment in zip(commits, jobs[1:], environments[1:], strict=True):
            stack.enter_context(commit.start_run(job, workers, environment))
        wait_until(lambda: count_waiting(folder) == workers * len(names), "the first step of all", 120)
        begin_turns(folder, baseline, workers)
        wait_until(lambda: len(read_steps(folder, names[-1])) >= WARMUP + TURNS, "all turns", 600, 0.5)
    base, other, this = (read_steps(folder, name)[WARMUP : WARMUP + TURNS] for name in names)
    ratios = [compute_ratios(*pair) for pair in ((other, base), (this, base), (this, other))]
    return Steps(*map(median, ratios))


def measure_deaths(commit: Commit, job: Job) -> tuple[list[float], list[float]]:
    """Return the slowest step around each bystander and each death, as multiples of the usual step."""
    bystanders, deaths = [], []
    with commit.start_run(job, 2) as run:
        run.wait_for_steps(CALM_STEPS + WARMUP)
        pids = sorted({tick.pid for tick in ticks.read_steps(job.out)})
        for number in range(DEATHS):
            run.wait_for_steps(CALM_STEPS)
            begin_s = time.monotonic()
            with Processes(job.out / f"bystander-{number}") as processes:
                processes.start([sys.executable, "-P", "-c", IMPORTS], PYTHONPATH=str(commit.source))
                processes.finish(timeout_s=120)
            bystanders.append(wait_and_measure(run, pids, begin_s))
            run.wait_for_steps(CALM_STEPS)
            begin_s = time.monotonic()
            os.kill(find_coordinator(run), signal.SIGKILL)
            deaths.append(wait_and_measure(run, pids, begin_s))
    return bystanders, deaths


def wait_and_measure(run: ElastaneRun, pids: list[int], begin_s: float) -> float:
    run.wait_for_steps(AFTERWARDS_STEPS)
    return measure_disturbance(run.read_ticks(), pids, begin_s, CALM_STEPS)["slowest_over_usual"]


def find_coordinator(run: ElastaneRun) -> int:
    """Return the pid of the run's coordinator, by its command line."""
    run_dir = str(run.run_dir.root).encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if b"elastane.run.coordinator" in command and any(word.startswith(run_dir) for word in command):
            return int(process.name)
    raise RuntimeError(f"no coordinator of {run.run_dir.root} is running")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path, help="a working tree of the other commit")
    parser.add_argument("--size", default="10m")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    exit_on_sigterm()
    commits = [Commit.find(options.tree), Commit.find(HERE.parent)]
    with tempfile.TemporaryDirectory(prefix="elastane-commits-") as work:
        measure(commits, options.size, options.repetitions, Path(work))


def measure(commits: list[Commit], size: str, repetitions: int, work: Path) -> None:
    """Measure in turns, and print the table anew after each repetition."""
    steps: dict[int, list[Steps]] = {1: [], 2: []}
    around: dict[str, list[float]] = {}
    for repetition in range(repetitions):
        # Every second repetition begins with the other commit.
        turn = commits if repetition % 2 == 0 else commits[::-1]
        for workers, baseline in ((1, "tree"), (2, "ddp")):
            folder = work / f"steps-{workers}-{repetition}"
            steps[workers].append(measure_steps(commits, baseline, size, workers, folder))
        for commit in turn:
            job = Job(size, 1_000_000, VIRTUAL_RANKS, work / f"{commit.name}-{repetition}")
            bystanders, deaths = measure_deaths(commit, job)
            around.setdefault(f"{commit.name} bystander", []).extend(bystanders)
            around.setdefault(f"{commit.name} death", []).extend(deaths)
        print(f"\nafter {repetition + 1} of {repetitions} repetitions:\n")
        print(render([commit.name for commit in commits], steps, around), flush=True)


def render(names: list[str], steps: dict[int, list[Steps]], around: dict[str, list[float]]) -> str:
    """Return the table: a row for each measurement, a column for each commit, and the new over the old."""
    rows = []
    for label, workers in (
        ("usual step / the plain loop that adds in a tree, 1 worker", 1),
        ("usual step / DDP, 2 workers", 2),
    ):
        rows.append(
            [label, *(format_spread(ratios, digits=3) for ratios in zip(*steps[workers], strict=True))]
        )
    for label, key in (
        ("slowest step around a bystander's start / usual", "bystander"),
        ("slowest step around the coordinator's death / usual", "death"),
    ):
        old, new = (around[f"{name} {key}"] for name in names)
        rows.append([label, *map(format_spread, (old, new)), f"{median(new) / median(old):.2f}"])
    return format_table(["", *names, "this / the other"], rows)


if __name__ == "__main__":
    main()
