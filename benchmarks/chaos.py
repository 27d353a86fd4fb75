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

from elastane.run.nouns.control import AskStatus, ProcessInfo

from elastane_run import ElastaneRun
from job import Job
from machine import describe_commit
from processes import exit_on_sigterm

VIRTUAL_RANKS = 6
MOST_WORKERS = 4
STEPS_PER_EVENT = 9
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
class Layout:
    """The copies of the optimizer state and the transport of gradients."""

    copies: str
    transport: str

    def __str__(self) -> str:
        return f"copies {self.copies}, transport {self.transport}"


@dataclass(frozen=True)
class Disturbance:
    """One event of the plan.

    Args:
        kind: the kind of the event.
        after_steps: the number of steps committed since the previous event.
        after_s: the seconds after these steps, so that the event hits any instant of a step.
        choice: 0 to 1; selects a worker, or their number.
    """

    kind: Kind
    after_steps: int
    after_s: float
    choice: float


def draw_plan(seed: int, events: int) -> list[Disturbance]:
    dice = random.Random(seed)
    return [
        Disturbance(dice.choice(KINDS), dice.randint(1, 10), dice.uniform(0, 0.15), dice.random())
        for _ in range(events)
    ]


def draw_layout(seed: int) -> Layout:
    dice = random.Random(f"way {seed}")
    return Layout(dice.choice(("all", "2", "3")), dice.choice(("shared", "tcp")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--events", type=int, default=20)
    options = parser.parse_args()
    exit_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix=f"elastane-chaos-{options.seed}-"))
    steps = 20 + STEPS_PER_EVENT * options.events
    try:
        print(f"the disturbed run: {draw_layout(options.seed)}", flush=True)
        run_disturbed(
            draw_plan(options.seed, options.events), draw_layout(options.seed), steps, work / "disturbed"
        )
        run_reference(steps, work / "reference")
        same = verify_runs(work / "reference" / "run", work / "disturbed" / "run")
    except (RuntimeError, TimeoutError) as error:
        print(error)
        same = False
    if same:
        shutil.rmtree(work)
        return 0
    print(f"\nkept: {work}")
    print(f"repeat: make chaos SEED={options.seed} EVENTS={options.events}  (at {describe_commit()})")
    return 1


def run_disturbed(disturbances: list[Disturbance], layout: Layout, steps: int, folder: Path) -> None:
    job = Job(SIZE, steps, VIRTUAL_RANKS, folder / "ticks")
    with ElastaneRun(
        job,
        folder,
        start=2,
        most=MOST_WORKERS,
        copies=layout.copies,
        transport=layout.transport,
        checkpoints=CHECKPOINTS,
    ) as run:
        run.wait_for_steps(3)
        for number, disturbance in enumerate(disturbances, start=1):
            run.wait_for_steps(disturbance.after_steps)
            time.sleep(disturbance.after_s)
            done = ACTIONS[disturbance.kind](run, disturbance.choice)
            print(f"{number:4d}  after step {run.count_steps():5d}  {disturbance.kind}: {done}", flush=True)
        run.finish(timeout_s=60 + steps)


def run_reference(steps: int, folder: Path) -> None:
    with ElastaneRun(
        Job(SIZE, steps, VIRTUAL_RANKS, folder / "ticks"), folder, start=1, most=MOST_WORKERS
    ) as run:
        run.finish(timeout_s=60 + steps)


def verify_runs(first: Path, second: Path) -> bool:
    """Print the results of ``elastane verify`` for the disturbed run and for both; return if all agree."""
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
    return f"the run needs every worker, so it grows to {MOST_WORKERS}"


def drain(run: ElastaneRun, choice: float) -> str:
    members, _ = list_expendable(run)
    if len(members) < 2:
        return grow(run)
    worker = pick(members, choice)
    run.drain(worker.worker or 0)
    return f"worker {worker.worker}"


def kill(run: ElastaneRun, choice: float, number: int = 1) -> str:
    """Kill some workers, but leave a whole copy of the state: losing all copies would cost steps."""
    members, number = list_expendable(run, number)
    others = [row for row in run.list_processes("worker") if row.state in {"starting", "ready"}]
    victims = []
    for _ in range(number):
        if len(members) > 1:
            victims.append(pick(members, choice))
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
    return f"term {status.term}"


def kill_everything(run: ElastaneRun, choice: float) -> str:
    """Kill all processes after the first checkpoint, and resume with other numbers of workers and copies."""
    run.wait(lambda: bool(run.read_events("checkpoint.saved")), "the first checkpoint")
    count = run.kill_everything(random.Random(choice))
    before = run.read_events("run.resumed")
    workers, copies = 1 + int(choice * MOST_WORKERS), "all" if choice < 0.5 else "2"
    run.resume(start=workers, copies=copies)
    run.wait(lambda: len(run.read_events("run.resumed")) > len(before), "the resume")
    resumed = run.read_events("run.resumed")[-1]
    return f"{count} processes; {resumed.detail['name']} on {workers} workers, copies {copies}"


def stop(run: ElastaneRun, choice: float) -> str:
    """Stop a worker's process, so that its agent detects a hang and ends it."""
    members, _ = list_expendable(run)
    if len(members) < 2:
        return grow(run)
    victim = pick(members, choice)
    os.kill(victim.pid, signal.SIGSTOP)
    return f"worker {victim.worker}"


def list_expendable(run: ElastaneRun, number: int = 1) -> tuple[list[ProcessInfo], int]:
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


def pick(rows: list[ProcessInfo], choice: float) -> ProcessInfo:
    return rows[int(choice * len(rows))]


ACTIONS: dict[Kind, Callable[[ElastaneRun, float], str]] = {
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
