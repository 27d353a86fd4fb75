"""Measure what strangers cost the steps of a run: processes that connect to all its ports and prove nothing.

A run with ``--listen`` trains meanwhile. Undisturbed steps and strangers take turns. The control is the same
flood against a bystander, a process that accepts connections and closes them at once: what it costs the steps
is the price of the flood itself on this machine, which the run cannot avoid.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import ticks
from elastane_run import ElastaneRun
from job import HERE, Job
from machine import describe_commit, find_cpu
from processes import Processes, exit_on_sigterm, read_cpu_s, wait_until
from spread import format_spread
from text import format_table

VIRTUAL_RANKS = 4
LISTENING = "0A"
SETTLED_STEPS = 2
"""The first steps of a turn, which do not count."""


@dataclass(frozen=True)
class Stranger:
    """A stranger.

    Args:
        label: its name in the table.
        rate: its connections a second; 0: as many as it can make.
        to_run: it connects to the ports of the run, not to the bystander's.
    """

    label: str
    rate: float
    to_run: bool = True


STRANGERS = (
    Stranger("one connection a second", 1),
    Stranger("100 connections a second", 100),
    Stranger("1,000 connections a second", 1000),
    Stranger("as many as one process can make", 0),
    Stranger("1,000 a second, to the bystander", 1000, to_run=False),
    Stranger("as many as one process can make, to the bystander", 0, to_run=False),
)


@dataclass
class Turns:
    """The measurements of a stranger, one for each turn.

    Attributes:
        ratios: the step beside this stranger, over the mean of the undisturbed steps before and after it.
        rates: the connections that it made in a second.
        cores: the processor time that the coordinator took, in cores.
    """

    ratios: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="10m")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12, help="steps of a turn")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="elastane-strangers-") as work:
        measured = measure(options.size, options.workers, options.steps, options.repetitions, Path(work))
    print(f"\n{find_cpu()}, commit {describe_commit()}, {options.workers} workers, {options.size}:\n")
    print(render(measured))


def measure(size: str, workers: int, steps: int, repetitions: int, work: Path) -> dict[str, Turns]:
    """Return the measurements of each stranger.

    Raises:
        TimeoutError: the steps stood still.
        RuntimeError: a process of the run died.
    """
    job = Job(size, 1_000_000, VIRTUAL_RANKS, work / "job")
    measured = {stranger.label: Turns() for stranger in STRANGERS}
    with (
        Processes(work / "bystander") as bystander,
        ElastaneRun(job, work, start=workers, most=workers, options=("--listen=127.0.0.1",)) as run,
    ):
        bystander.start([sys.executable, str(HERE / "stranger.py"), "--listen"])
        run.wait_for_members(workers)
        run.wait_for_steps(steps)
        (coordinator,) = (row for row in run.list_processes("coordinator") if row.state != "standby")
        pids = list(run.read_worker_pids().values())
        ports = sorted(set().union(*map(find_ports, (coordinator.pid, *pids))))
        others = [int(bystander.read_last_output(0))]
        before_s = measure_turn(run, pids, steps)
        for repetition in range(repetitions):
            for number, stranger in enumerate(STRANGERS):
                turns = measured[stranger.label]
                used_s, begin_s = read_cpu_s(coordinator.pid), time.monotonic()
                with Processes(work / f"stranger-{repetition}-{number}") as processes:
                    count = processes.folder / "count"
                    processes.start(
                        [
                            *(sys.executable, str(HERE / "stranger.py"), f"--rate={stranger.rate}"),
                            *(f"--count={count}", "--ports"),
                            *map(str, ports if stranger.to_run else others),
                        ]
                    )
                    wait_until(partial(has_begun, count), "the stranger's first connection")
                    disturbed_s = measure_turn(run, pids, steps)
                    took_s = time.monotonic() - begin_s
                    turns.rates.append(int(count.read_text()) / took_s)
                turns.cores.append((read_cpu_s(coordinator.pid) - used_s) / took_s)
                after_s = measure_turn(run, pids, steps)
                turns.ratios.append(2 * disturbed_s / (before_s + after_s))
                before_s = after_s
                print(f"{stranger.label}: {turns.ratios[-1]:.3f}, {turns.rates[-1]:.0f} a second", flush=True)
        for kind in ("worker.died", "worker.hung", "coordinator.died", "node.lost"):
            if run.read_events(kind):
                raise RuntimeError(f"the strangers did harm: {run.read_events(kind)}")
    return measured


def has_begun(count: Path) -> bool:
    """Return whether the stranger has counted a connection."""
    return count.exists() and count.stat().st_size > 0


def measure_turn(run: ElastaneRun, pids: list[int], steps: int) -> float:
    """Return the median of the next steps in seconds, the first ones of the turn left out."""
    begin_s = run.wait_for_steps(SETTLED_STEPS)
    run.wait_for_steps(steps)
    seen = ticks.read_steps(run.job.out)
    return max(
        median(ticks.compute_durations_s([t for t in seen if t.pid == pid and t.at_s >= begin_s]).values())
        for pid in pids
    )


def find_ports(pid: int) -> set[int]:
    """Return the TCP ports on which a process listens."""
    descriptors = Path(f"/proc/{pid}/fd").iterdir()
    targets = {str(descriptor.readlink()) for descriptor in descriptors}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {
        int(local.split(":")[1], 16)
        for _, local, _, state, *rest in rows
        if state == LISTENING and f"socket:[{rest[5]}]" in targets
    }


def render(measured: dict[str, Turns]) -> str:
    return format_table(
        ["stranger", "step / undisturbed", "connections a second", "the coordinator's cores"],
        [
            [
                label,
                format_spread(turns.ratios),
                format_spread(turns.rates, digits=0),
                format_spread(turns.cores),
            ]
            for label, turns in measured.items()
        ],
    )


if __name__ == "__main__":
    main()
