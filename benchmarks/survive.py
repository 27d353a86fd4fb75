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

from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.nouns.silence_limits import SILENCE_S

from chaos import verify_runs
from elastane_run import ElastaneRun
from job import HERE, Job
from machine import describe_commit
from processes import exit_on_sigterm, wait_until

SIZE, STEPS, VIRTUAL_RANKS, MOST_WORKERS = "1m", 36, 6, 4
CHECKPOINTS = "3 steps"
PATIENCE_S = 240
WARM = HERE.parent / "tests" / "run" / "processes"


@dataclass(frozen=True)
class Shape:
    """The options with which an attempt starts."""

    workers: int
    copies: str

    def __str__(self) -> str:
        return f"{self.workers} workers, copies {self.copies}"


@dataclass(frozen=True)
class AttemptEnd:
    """The end of an attempt.

    Args:
        after_steps: steps made in this attempt; -1: the attempt ends while it starts.
        after_s: seconds after these steps, so that the end hits any instant.
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
    ends: tuple[AttemptEnd, ...]


def draw_history(seed: int) -> History:
    dice = random.Random(seed)

    def draw_shape() -> Shape:
        return Shape(dice.randint(1, 3), dice.choice(["all", "2"]))

    def draw_end(number: int) -> AttemptEnd:
        # A run without a checkpoint cannot be resumed, so the first attempt does not end while it starts.
        if number and dice.random() < 0.25:
            return AttemptEnd(-1, dice.uniform(0, 2.5), draw_shape())
        return AttemptEnd(dice.randint(1, 12), dice.uniform(0, 0.3), draw_shape())

    first = draw_shape()
    return History(seed, first, tuple(draw_end(number) for number in range(dice.choice([1, 1, 2, 2, 3]))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first history; the next ones follow")
    parser.add_argument("--histories", type=int, default=3)
    options = parser.parse_args()
    exit_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix=f"elastane-survive-{options.seed}-"))
    print(f"{options.histories} histories from seed {options.seed}, at {describe_commit()}", flush=True)
    run_reference(work / "reference")
    different = []
    with start_warm_process(work / "warm") as (command, warm_pid):
        for seed in range(options.seed, options.seed + options.histories):
            folder = work / f"history-{seed}"
            try:
                play(draw_history(seed), folder, command, warm_pid)
                same = are_equal(work / "reference" / "run", folder / "run")
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
        print(f"{options.histories} of {options.histories} histories end with the bytes of the reference run")
        return 0
    print(
        f"{len(different)} of {options.histories} histories differ from it: seeds {different}; kept: {work}"
    )
    print(f"repeat: make survive HISTORIES=1 SEED={different[0]}  (at {describe_commit()})")
    return 1


@contextmanager
def start_warm_process(path: Path) -> Iterator[tuple[Sequence[str], int]]:
    """Yield a command for ``elastane`` with fork servers forked from one process, and that process's pid."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(WARM / "warm_process.py"), str(path)],
        stdin=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        wait_until(path.exists, "the warm process listens")
        client = (sys.executable, "-S", "-E", str(WARM / "warm_client.py"), str(path))
        main = (
            sys.executable,
            "-P",
            str(WARM / "warm_main.py"),
            "elastane.cli.main",
            str(SILENCE_S),
            *client,
            "--",
        )
        yield main, process.pid
    finally:
        process.communicate()


def run_reference(folder: Path) -> None:
    job = Job(SIZE, STEPS, VIRTUAL_RANKS, folder / "ticks")
    with ElastaneRun(job, folder, start=1, most=MOST_WORKERS, checkpoints="never") as run:
        run.finish_undisturbed(PATIENCE_S)


def play(history: History, folder: Path, command: Sequence[str], warm_pid: int) -> None:
    """Play one history to the end of its run.

    Args:
        history: the history.
        folder: the folder of all files.
        command: the command to call for ``elastane``.
        warm_pid: the process id of the process from which its fork servers are forked.

    Raises:
        RuntimeError: an attempt ended otherwise than planned.
    """
    dice = random.Random(history.seed)
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
        run.wait(lambda: bool(run.read_events("checkpoint.saved")), "the first checkpoint")
        resumes = 0
        for end in history.ends:
            wait_for_end(run, end, resumes)
            print(f"  {kill_all(run, dice, warm_pid)}; then {end.then}", flush=True)
            if run.read_events("run.finished"):
                print("  too late: the run has finished")
                return
            resumes = 1 + len(run.read_events("run.resumed"))
            run.resume(start=end.then.workers, copies=end.then.copies)
        run.finish(PATIENCE_S)


def wait_for_end(run: ElastaneRun, end: AttemptEnd, resumes: int) -> None:
    """Wait for the instant of an end, in the attempt after this many resumes."""
    if end.after_steps >= 0:
        run.wait(lambda: len(run.read_events("run.resumed")) >= resumes, "the resume")
        goal = run.count_steps() + end.after_steps
        run.wait(lambda: run.count_steps() >= min(goal, STEPS), f"step {goal}")
    time.sleep(end.after_s)


def kill_all(run: ElastaneRun, dice: random.Random, warm_pid: int) -> str:
    """Kill all processes of the run, but not the warm one; describe what was killed."""
    count = run.kill_everything(dice, warm_pid)
    found = Catalog(open_storage(str(run.run_dir.checkpoints))).list_summaries()
    newest = max(summary.age for summary in found if summary.state == "complete")
    half = [summary.name for summary in found if summary.state != "complete" and summary.age > newest]
    met = f", {' and '.join(half)} half written" if half else ""
    return f"{count} processes killed after step {run.count_steps()}{met}"


def are_equal(first: Path, second: Path) -> bool:
    """Return whether two runs are equal, by `elastane verify` and by their models."""
    models = {hashlib.sha256((run / "model.safetensors").read_bytes()).digest() for run in (first, second)}
    return verify_runs(first, second) and len(models) == 1


if __name__ == "__main__":
    sys.exit(main())
