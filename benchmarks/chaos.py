"""Disturb a real run by a seeded plan, and compare every bit with a reference run.

Workers are added, drained, killed at any instant, and stopped until they count as hung. The coordinator is
killed. All processes are killed, and the run is resumed with other settings. The seed alone decides the plan,
the copies of the optimizer's state and the transport of gradients; it does not decide what the processes are
doing at the instant of an event.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elastane.api.control import AskStatus, ProcessInfo

from elastane_run import ElastaneRun
from job import HERE, Job
from processes import end_in_order_on_sigterm

VIRTUAL_RANKS = 6
MOST_WORKERS = 4
STEPS_PER_EVENT = 14
SIZE = "1m"

CHECKPOINTS = "10 steps"

Kind = Literal["resize", "drain", "kill", "kill two", "kill coordinator", "kill everything", "stop"]
KINDS: tuple[Kind, ...] = (
    "resize",
    "resize",
    "drain",
    "kill",
    "kill",
    "kill two",
    "kill coordinator",
    "kill everything",
    "stop",
)


@dataclass(frozen=True)
class Way:
    """How a run keeps its optimizer's state and hands gradients over."""

    copies: str
    transport: str

    def __str__(self) -> str:
        return f"copies {self.copies}, transport {self.transport}"


@dataclass(frozen=True)
class Trouble:
    """One event of the plan.

    Args:
        kind: of the event.
        after_steps: steps committed since the event before.
        after_s: seconds after these steps, so that the event hits any instant of a step.
        choice: 0 to 1; decides which worker, or how many.
    """

    kind: Kind
    after_steps: int
    after_s: float
    choice: float


def plan(seed: int, events: int) -> list[Trouble]:
    dice = random.Random(seed)  # noqa: S311 - a plan, not a secret
    return [
        Trouble(dice.choice(KINDS), dice.randint(1, 10), dice.uniform(0, 0.15), dice.random())
        for _ in range(events)
    ]


def way(seed: int) -> Way:
    dice = random.Random(f"way {seed}")  # noqa: S311 - likewise
    return Way(dice.choice(("all", "2", "3")), dice.choice(("shared", "tcp")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--events", type=int, default=20)
    options = parser.parse_args()
    end_in_order_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix=f"elastane-chaos-{options.seed}-"))
    steps = 20 + STEPS_PER_EVENT * options.events
    try:
        print(f"the stormy run: {way(options.seed)}", flush=True)
        stormy(plan(options.seed, options.events), way(options.seed), steps, work / "stormy")
        quiet(steps, work / "quiet")
        same = compared(work / "quiet" / "run", work / "stormy" / "run")
    except (RuntimeError, TimeoutError) as error:
        print(error)
        same = False
    if same:
        shutil.rmtree(work)
        return 0
    print(f"\nkept: {work}\nagain: make chaos SEED={options.seed} EVENTS={options.events}  (at {commit()})")
    return 1


def stormy(troubles: list[Trouble], how: Way, steps: int, folder: Path) -> None:
    job = Job(SIZE, steps, VIRTUAL_RANKS, folder / "ticks")
    with ElastaneRun(
        job,
        folder,
        start=2,
        most=MOST_WORKERS,
        copies=how.copies,
        transport=how.transport,
        checkpoints=CHECKPOINTS,
    ) as run:
        run.wait_for_steps(3)
        for number, trouble in enumerate(troubles, start=1):
            run.wait_for_steps(trouble.after_steps)
            time.sleep(trouble.after_s)
            done = DEEDS[trouble.kind](run, trouble.choice)
            print(f"{number:4d}  after step {run.steps():5d}  {trouble.kind}: {done}", flush=True)
        run.finish(timeout_s=60 + steps)


def quiet(steps: int, folder: Path) -> None:
    with ElastaneRun(
        Job(SIZE, steps, VIRTUAL_RANKS, folder / "ticks"), folder, start=1, most=MOST_WORKERS
    ) as run:
        run.finish(timeout_s=60 + steps)


def compared(first: Path, second: Path) -> bool:
    """Print the result of ``elastane verify`` for the stormy run alone and for both runs."""
    command = [sys.executable, "-m", "elastane.cli.main", "verify"]
    alone = subprocess.run([*command, str(second)], check=False).returncode
    together = subprocess.run([*command, str(first), str(second)], check=False).returncode
    return alone == 0 and together == 0


def resize(run: ElastaneRun, choice: float) -> str:
    workers = 2 + int(choice * (MOST_WORKERS - 1))
    run.resize(workers)
    return f"to {workers}"


def grow(run: ElastaneRun) -> str:
    """Add workers, in place of a loss that the run would not survive."""
    run.resize(MOST_WORKERS)
    return f"nobody can be spared, so to {MOST_WORKERS} workers"


def drain(run: ElastaneRun, choice: float) -> str:
    members, _ = spared_by_others(run)
    if len(members) < 2:
        return grow(run)
    worker = picked(members, choice)
    run.drain(worker.worker or 0)
    return f"worker {worker.worker}"


def kill(run: ElastaneRun, choice: float, number: int = 1) -> str:
    """Kill some workers, but leave a whole copy of the state: losing all copies would cost steps."""
    members, number = spared_by_others(run, number)
    others = [row for row in run.processes_as("worker") if row.state in {"starting", "ready"}]
    victims = []
    for _ in range(number):
        if len(members) > 1:
            victims.append(picked(members, choice))
            members.remove(victims[-1])
        elif others:
            victims.append(others.pop())
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    return ", ".join(f"worker {victim.worker} ({victim.state})" for victim in victims) or grow(run)


def kill_two(run: ElastaneRun, choice: float) -> str:
    return kill(run, choice, number=2)


def kill_coordinator(run: ElastaneRun, choice: float) -> str:
    del choice
    status = run.ask(AskStatus())
    os.kill(next(row.pid for row in status.processes if row.role == "coordinator"), signal.SIGKILL)
    return f"of term {status.term}"


def kill_everything(run: ElastaneRun, choice: float) -> str:
    """Kill all processes once there is a checkpoint, and resume with other numbers of workers and copies."""
    run.wait(lambda: bool(run.events("checkpoint.saved")), "the first checkpoint")
    count = run.kill_everything(random.Random(choice))  # noqa: S311 - an order, not a secret
    before = run.events("run.resumed")
    workers, copies = 1 + int(choice * MOST_WORKERS), "all" if choice < 0.5 else "2"
    run.resume(start=workers, copies=copies)
    run.wait(lambda: len(run.events("run.resumed")) > len(before), "the resume")
    resumed = run.events("run.resumed")[-1]
    return f"{count} processes; {resumed.detail['name']} on {workers} workers, copies {copies}"


def stop(run: ElastaneRun, choice: float) -> str:
    """Stop a worker's process, so that its agent detects a hang and ends it."""
    members, _ = spared_by_others(run)
    if len(members) < 2:
        return grow(run)
    victim = picked(members, choice)
    os.kill(victim.pid, signal.SIGSTOP)
    return f"worker {victim.worker}"


def spared_by_others(run: ElastaneRun, number: int = 1) -> tuple[list[ProcessInfo], int]:
    """Return the members that may be lost while another one remains, and how many of them at once.

    If every worker keeps everything, these are the members that are complete. With sharded state any member
    may be lost, but at most the number of copies less one at once.
    """
    status = run.ask(AskStatus())
    members = [row for row in status.processes if row.role == "worker" and row.state == "member"]
    copies = status.spec.copies if status.spec is not None else None
    if copies is not None:
        return members, min(number, copies - 1)
    most = max((row.blocks or 0 for row in members), default=0)
    return [row for row in members if row.blocks == most], number


def picked(rows: list[ProcessInfo], choice: float) -> ProcessInfo:
    return rows[int(choice * len(rows))]


def commit() -> str:
    asked = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True
    )
    return asked.stdout.strip() or "an unknown commit"


DEEDS: dict[Kind, Callable[[ElastaneRun, float], str]] = {
    "resize": resize,
    "drain": drain,
    "kill": kill,
    "kill two": kill_two,
    "kill coordinator": kill_coordinator,
    "kill everything": kill_everything,
    "stop": stop,
}


if __name__ == "__main__":
    sys.exit(main())
