"""Play seeded histories in which every process dies: train, kill, resume on other workers, finish, compare.

Each history loses all of its processes one to three times. The seed decides the instants, but not what the
processes are doing then; half of the time they are writing a checkpoint. The history continues with other
numbers of workers and copies, and must end with the bytes of one reference run.

Workers are forked from one process that has imported torch, as in the tests: attempts are short, and
imports would take most of their time.
"""

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elastane.storage.catalog import Catalog
from elastane.storage.urls import open_storage

from chaos import commit, compared
from elastane_run import ElastaneRun
from job import HERE, Job
from processes import end_in_order_on_sigterm, wait_until

SIZE, STEPS, VIRTUAL_RANKS, MOST_WORKERS = "1m", 36, 6, 4
CHECKPOINTS = "3 steps"
PATIENCE_S = 240
WARM = HERE.parent / "tests" / "processes"


@dataclass(frozen=True)
class Shape:
    """The options with which an attempt starts."""

    workers: int
    copies: str

    def __str__(self) -> str:
        return f"{self.workers} workers, copies {self.copies}"


@dataclass(frozen=True)
class Death:
    """The end of an attempt.

    Args:
        after_steps: steps made in this attempt; -1: while it is still starting.
        after_s: seconds after these steps, so that a death hits any instant.
        then: the options of the next attempt.
    """

    after_steps: int
    after_s: float
    then: Shape


@dataclass(frozen=True)
class History:
    """One run, from its beginning to its end."""

    seed: int
    first: Shape
    deaths: tuple[Death, ...]


def plan(seed: int) -> History:
    dice = random.Random(seed)  # noqa: S311 - a plan, not a secret

    def shape() -> Shape:
        return Shape(dice.randint(1, 3), dice.choice(["all", "2"]))

    def death(number: int) -> Death:
        # A run without a checkpoint cannot be resumed, so the first attempt is not ended while it
        # starts.
        if number and dice.random() < 0.25:
            return Death(-1, dice.uniform(0, 2.5), shape())
        return Death(dice.randint(1, 12), dice.uniform(0, 0.3), shape())

    first = shape()
    return History(seed, first, tuple(death(number) for number in range(dice.choice([1, 1, 2, 2, 3]))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first history; the next ones follow")
    parser.add_argument("--histories", type=int, default=3)
    options = parser.parse_args()
    end_in_order_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix=f"elastane-survive-{options.seed}-"))
    print(f"{options.histories} histories from seed {options.seed}, at {commit()}", flush=True)
    quiet(work / "quiet")
    different = []
    with warm(work / "warm") as (command, warm_pid):
        for seed in range(options.seed, options.seed + options.histories):
            folder = work / f"history-{seed}"
            try:
                lived(plan(seed), folder, command, warm_pid)
                same = equal(work / "quiet" / "run", folder / "run")
            except (RuntimeError, TimeoutError) as error:
                print(error)
                same = False
            print(f"history {seed}: {'equal' if same else 'NOT equal'}\n", flush=True)
            if same:
                shutil.rmtree(folder)
            else:
                different.append(seed)
    if not different:
        shutil.rmtree(work)
        print(f"{options.histories} of {options.histories} histories end with the bytes of the quiet run")
        return 0
    print(f"{len(different)} of {options.histories} histories do not: seeds {different}; kept: {work}")
    print(f"again: make survive HISTORIES=1 SEED={different[0]}  (at {commit()})")
    return 1


@contextmanager
def warm(path: Path) -> Iterator[tuple[Sequence[str], int]]:
    """Yield a command for ``elastane`` with fork servers forked from one process, and that process's pid."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(WARM / "warm_process.py"), str(path)],
        stdin=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        wait_until(path.exists, "the warm process listens")
        client = (sys.executable, "-S", "-E", str(WARM / "warm_client.py"), str(path))
        main = (sys.executable, "-P", str(WARM / "warm_main.py"), "elastane.cli.main", *client, "--")
        yield main, process.pid
    finally:
        process.communicate()


def quiet(folder: Path) -> None:
    job = Job(SIZE, STEPS, VIRTUAL_RANKS, folder / "ticks")
    with ElastaneRun(job, folder, start=1, most=MOST_WORKERS, checkpoints="never") as run:
        run.finish_in_peace(PATIENCE_S)


def lived(history: History, folder: Path, command: Sequence[str], warm_pid: int) -> None:
    """Play one history to the end of its run.

    Args:
        history: its deaths.
        folder: for all files.
        command: to call for ``elastane``.
        warm_pid: of the process that its fork servers are forked from.

    Raises:
        RuntimeError: an attempt ended in another way than planned.
    """
    dice = random.Random(history.seed)  # noqa: S311 - an order, not a secret
    first = history.first
    job = Job(SIZE, STEPS, VIRTUAL_RANKS, folder / "ticks")
    with ElastaneRun(
        job,
        folder,
        start=first.workers,
        most=MOST_WORKERS,
        copies=first.copies,
        checkpoints=CHECKPOINTS,
        command=command,
    ) as run:
        print(f"history {history.seed}: {first}", flush=True)
        run.wait(lambda: bool(run.events("checkpoint.saved")), "the first checkpoint")
        resumes = 0
        for death in history.deaths:
            wait_for(run, death, resumes)
            print(f"  {killed(run, dice, warm_pid)}; then {death.then}", flush=True)
            if run.events("run.finished"):
                print("  too late: it had finished")
                return
            resumes = 1 + len(run.events("run.resumed"))
            run.resume(start=death.then.workers, copies=death.then.copies)
        run.finish(PATIENCE_S)


def wait_for(run: ElastaneRun, death: Death, resumes: int) -> None:
    """Wait for the instant of a death, in the attempt after this many resumes."""
    if death.after_steps >= 0:
        run.wait(lambda: len(run.events("run.resumed")) >= resumes, "the resume")
        goal = run.steps() + death.after_steps
        run.wait(lambda: run.steps() >= min(goal, STEPS), f"step {goal}")
    time.sleep(death.after_s)


def killed(run: ElastaneRun, dice: random.Random, warm_pid: int) -> str:
    """Kill everything but that process; return in words what was killed."""
    count = run.kill_everything(dice, warm_pid)
    found = Catalog(open_storage(str(run.run_dir.checkpoints))).list_summaries()
    newest = max(summary.age for summary in found if summary.state == "complete")
    half = [summary.name for summary in found if summary.state != "complete" and summary.age > newest]
    met = f", {' and '.join(half)} half written" if half else ""
    return f"{count} processes killed after step {run.steps()}{met}"


def equal(first: Path, second: Path) -> bool:
    """Return whether two runs are equal, by `elastane verify` and by their models."""
    models = {hashlib.sha256((run / "model.safetensors").read_bytes()).digest() for run in (first, second)}
    return compared(first, second) and len(models) == 1


if __name__ == "__main__":
    sys.exit(main())
