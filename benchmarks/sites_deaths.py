"""Kill one of two sites in the middle of a round, or in its exchange: rounds of Elastane, and torchft's.

The sites are those of ``sites.py``. The killed one has neither Elastane's coordinator nor torchft's
lighthouse, and does not return. Elastane makes its virtual rank again at the other site, and torchft goes on
without it. torchft needs ``--torchft``: a Python that has it.
"""

import argparse
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import ticks
import workload
from machine import describe_commit, find_cpu
from node_networks import NodeNetworks, enter_first_node
from node_programs import TimeLimits
from node_run import NodeRun
from node_torchft import TUNED, NodeTorchft, require_torchft
from processes import exit_on_sigterm, wait_until
from round_phases import ROUND_S, read_processes, read_rounds
from rounds_job import WIRES, RoundsJob
from sites import ENDLESS, SITES
from spread import format_spread
from text import format_table

Moment: TypeAlias = Literal["in the middle of a round", "in the exchange"]
SETTLED_ROUNDS = 2
"""Of both sites, before one is killed; the last one is the usual round."""
KILLED = 1
"""The node that is killed."""
IN_EXCHANGE_S = 0.3
"""After the last inner step of both sites."""
LIMITS = TimeLimits(TUNED.options)
"""torchft notices a death soon, and has its default time for an exchange, which takes long here."""
LABELS = {
    "usual_s": "usual round",
    "next_s": "from the death to the end of the next round",
    "lost": "inner steps for this round with samples that the model has not learned from",
    "more": "inner steps that the other site has made beyond its own",
}


@dataclass(frozen=True)
class Training:
    """A training of two sites.

    Args:
        count_lost: returns the inner steps that a round has lost, by its number and the inner steps that were
            made for it.
        find_failure: returns why a site has ended by itself; an empty text while all run.
    """

    count_lost: Callable[[int, int], int]
    find_failure: Callable[[], str]


Start: TypeAlias = Callable[[RoundsJob], AbstractContextManager[Training]]


@dataclass(frozen=True)
class Death:
    """What the death of a site costs; see `LABELS`."""

    usual_s: float
    next_s: float
    lost: int
    more: int


@contextmanager
def start_elastane(networks: NodeNetworks, job: RoundsJob) -> Iterator[Training]:
    with NodeRun(job, job.out / "run", networks, start=1, most=SITES) as run:
        run.join(1)
        run.wait_for_members(SITES, complete=True)

        def count_lost(number: int, _made: int) -> int:
            run.wait_for_step(number)
            line = next(line for line in run.read_ledger() if line.step == number)
            return SITES * job.inner_steps - line.samples.count // job.microbatch

        yield Training(count_lost, lambda: run.describe_exit(0) or run.describe_exit(1))


@contextmanager
def start_torchft(networks: NodeNetworks, python: str, job: RoundsJob) -> Iterator[Training]:
    with NodeTorchft(job, networks, LIMITS, python, each=1) as run:
        run.join()

        def count_lost(number: int, made: int) -> int:
            tick = next(tick for tick in run.read_steps() if tick.step == number)
            return made - tick.workers * job.inner_steps

        yield Training(count_lost, run.find_failure)


def measure(
    start: Start,
    job: RoundsJob,
    networks: NodeNetworks,
    moment: Moment,
) -> Death:
    """Kill a site at a moment of a round, and watch the other one."""
    with start(job) as training:
        try:
            rounds = wait_for_moment(job, moment, training)
            killed_s = time.monotonic()
            networks.end(KILLED, "killed")
            number = rounds[-1] + 1
            wait_until(partial(has_ended, job.out, number), "the next round", 2 * ROUND_S)
            seen = ticks.read_all(job.out)
            last = next(tick for tick in reversed(seen) if (tick.kind, tick.step) == ("step", number))
            made = [pid for pid, some in read_processes(job.out).items() for _ in list_made(some, number)]
            usual = read_rounds(ticks.select_process(last.pid, seen))[number - 1]
            return Death(
                usual_s=usual.ended_s - usual.begun_s,
                next_s=last.at_s - killed_s,
                lost=training.count_lost(number, len(made)),
                more=made.count(last.pid) - job.inner_steps,
            )
        finally:
            for node in range(SITES):
                networks.clear(node)


def list_made(seen: Sequence[ticks.Tick], number: int) -> list[ticks.Tick]:
    """Return the inner steps that a process has begun for a round."""
    ends = {tick.step: tick.at_s for tick in seen if tick.kind == "step"}
    last_s = ends.get(number, math.inf)
    return [tick for tick in seen if tick.kind == "microbatch" and ends[number - 1] < tick.at_s < last_s]


def has_ended(out: Path, number: int) -> bool:
    return any(tick.step == number for tick in ticks.read_steps(out))


def wait_for_moment(job: RoundsJob, moment: Moment, training: Training) -> Sequence[int]:
    """Wait for a moment of a round of both sites; return the numbers of the rounds before it.

    Raises:
        RuntimeError: a site has ended by itself.
    """
    goal = job.inner_steps if moment == "in the exchange" else job.inner_steps // 2
    found: list[int] = []

    def has_come() -> bool:
        if failure := training.find_failure():
            raise RuntimeError(failure)
        processes = read_processes(job.out).values()
        rounds = [read_rounds(seen) for seen in processes]
        common = set[int].intersection(*map(set, rounds)) if len(rounds) == SITES else set[int]()
        begun = [count_inner_steps(seen) for seen in processes]
        found[:] = sorted(common)
        return len(common) >= SETTLED_ROUNDS and min(begun) >= goal

    wait_until(has_come, f"a site is {moment}", 4 * ROUND_S)
    if moment == "in the exchange":
        steps = list(read_processes(job.out).values())
        usual = [read_rounds(seen)[found[-1]] for seen in steps]
        time.sleep(max((each.last_s - each.first_s) / job.inner_steps for each in usual) + IN_EXCHANGE_S)
    return found


def count_inner_steps(seen: Sequence[ticks.Tick]) -> int:
    """Return how many inner steps a process has begun since its last round."""
    ended = max((place for place, tick in enumerate(seen) if tick.kind != "microbatch"), default=-1)
    return len(seen) - 1 - ended


def format_deaths(found: dict[Moment, dict[str, list[Death]]], names: Sequence[str]) -> str:
    rows = []
    for moment, columns in found.items():
        for key, label in LABELS.items():
            unit, digits = ("s", 1) if key.endswith("_s") else ("", 0)
            cells = (
                format_spread([getattr(each, key) for each in columns[name]], unit, digits=digits)
                for name in names
            )
            rows.append([moment if key == "usual_s" else "", label, *cells])
    return format_table(["a site is killed", "", *names], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="100mbit", help="of the link, in each direction")
    parser.add_argument("--size", choices=list(workload.SIZES), default="10m")
    parser.add_argument("--inner-steps", type=int, default=50)
    parser.add_argument("--wire", choices=WIRES, default="full", help="of Elastane; torchft sends fp32")
    parser.add_argument("--torchft", default="", help="a Python that has torchft and torch")
    parser.add_argument("--repetitions", type=int, default=2)
    options = parser.parse_args()
    enter_first_node()
    version = require_torchft(options.torchft)
    exit_on_sigterm()
    microbatch = workload.SIZES[options.size].microbatch
    with tempfile.TemporaryDirectory() as folder, NodeNetworks(options.rate) as networks:
        columns: dict[str, Start] = {"Elastane": partial(start_elastane, networks)}
        if version:
            columns["torchft"] = partial(start_torchft, networks, options.torchft)
        found: dict[Moment, dict[str, list[Death]]] = {
            moment: {name: [] for name in columns} for moment in get_args(Moment)
        }
        for _ in range(options.repetitions):
            for moment, name in ((moment, name) for moment in found for name in columns):
                out = Path(folder) / "job"
                job = RoundsJob(
                    options.size, ENDLESS, SITES, out, options.inner_steps, microbatch, options.wire
                )
                found[moment][name].append(measure(columns[name], job, networks, moment))
                print(f"{name}, {moment}: {found[moment][name][-1]}", flush=True)
                shutil.rmtree(out)
    print(f"\n{find_cpu()}, commit {describe_commit()}, {version or 'no torchft'}")
    print(f"model {options.size}, H = {options.inner_steps}, wire {options.wire}, link: {options.rate}\n")
    print(format_deaths(found, list(columns)))


if __name__ == "__main__":
    main()
