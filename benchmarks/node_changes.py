"""Let a node join, then end one: Elastane, torchrun's elastic agents and torchft, side by side.

The nodes are network namespaces of this machine with two workers each and one virtual link. Every contestant
trains the same model with the same batch, and they take turns. A node ends in one of these ways: all its
processes are killed at once, or stopped as if it had lost its power, or its link is cut. The node in charge
is the one with Elastane's coordinator, torchrun's rendezvous or torchft's lighthouse.

torchrun goes back to a snapshot, which its script writes every ten steps. torchft discards a step in which a
node is lost. What a contestant does not recover from in the first repetition is not tried again.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version as find_version
from itertools import product
from pathlib import Path
from typing import Protocol, TypeAlias

import calm
import node_torchft
import node_torchrun
import ticks
import workload
from job import Job
from machine import describe_commit, find_cpu
from node_deaths import DEATHS, Death
from node_networks import NodeNetworks, enter_first_node
from node_programs import DEFAULTS, EACH
from node_run import NodeRun
from node_torchft import NodeTorchft, find_torchft_version
from node_torchrun import NodeTorchrun
from processes import exit_on_sigterm
from restart import count_lost_steps, find_longest_stall_s
from spread import format_spread
from text import format_table

VIRTUAL_RANKS = 2 * EACH
AFTERWARDS_STEPS = 3
ENDLESS = 1_000_000
POLL_S = 0.1
JOIN = "a node joins"
LABELS = {
    "first_s": "until the first step at the new size",
    "stall_s": "longest time without a new step",
    "lost_steps": "steps made again or discarded",
}


class Contestant(Protocol):
    """A training on the first node, which another node can join."""

    def join(self) -> object:
        """Start the second node."""

    def read_steps(self) -> list[ticks.Tick]:
        """Return the finished steps, with the numbers of their workers."""

    def count_discarded_steps(self, since_s: float) -> int:
        """Return how many steps were discarded since a monotonic time."""

    def describe_exit(self, node: int) -> str:
        """Return how the programs of a node have ended by themselves; an empty text while all run."""


@dataclass(frozen=True)
class Change:
    """What a change of the nodes costs.

    Args:
        usual_s: the usual step before it, in seconds.
        first_s: the time until the end of the first step at the new size, in seconds.
        stall_s: the longest time without a new step, in seconds.
        lost_steps: the steps that were made again.
    """

    usual_s: float
    first_s: float
    stall_s: float
    lost_steps: int


@dataclass(frozen=True)
class Failure:
    """No step at the new size came, for this reason."""

    reason: str


Outcome: TypeAlias = Change | Failure


@dataclass(frozen=True)
class Extent:
    """The extent of a measurement.

    Args:
        calm_steps: the undisturbed steps before a change, which give the usual step.
        within_s: the longest time to wait for a step at the new size, in seconds.
    """

    calm_steps: int
    within_s: float


def watch(run: Contestant, change: Callable[[], object], workers: int, stays: int, extent: Extent) -> Outcome:
    """Make a change, and wait for steps of this many workers on the node that stays."""
    try:
        before = 2 * EACH if workers == EACH else EACH
        usual_s = calm.wait_for_calm(run.read_steps, before, extent.calm_steps)
    except TimeoutError as error:
        return Failure(str(error))
    began_s = time.monotonic()
    change()

    def find_resized() -> list[ticks.Tick]:
        return [tick for tick in run.read_steps() if tick.at_s > began_s and tick.workers == workers]

    def count_new_steps() -> int:
        furthest = max(tick.step for tick in run.read_steps() if tick.workers != workers)
        return len({tick.step for tick in find_resized() if tick.step > furthest})

    while count_new_steps() < AFTERWARDS_STEPS:
        past_s = time.monotonic() - began_s
        if reason := run.describe_exit(stays):
            return Failure(f"never: {reason} after {past_s:.0f} s")
        if past_s > extent.within_s:
            return Failure(f"not within {extent.within_s:.0f} s")
        time.sleep(POLL_S)
    end_s, seen = time.monotonic(), run.read_steps()
    return Change(
        usual_s,
        find_resized()[0].at_s - began_s,
        find_longest_stall_s(seen, began_s, end_s),
        count_lost_steps(seen, began_s, end_s) + run.count_discarded_steps(began_s),
    )


def measure(
    start: Callable[[], AbstractContextManager[Contestant]],
    networks: NodeNetworks,
    death: Death,
    extent: Extent,
) -> dict[str, Outcome]:
    """Return the outcomes of a join and of a death after it, by their descriptions."""
    victim = 0 if death.victim == "in charge" else 1
    with start() as run:
        try:
            found = {JOIN: watch(run, run.join, 2 * EACH, 0, extent)}
            if isinstance(found[JOIN], Change):
                end = partial(networks.end, victim, death.how)
                found[describe(death)] = watch(run, end, EACH, 1 - victim, extent)
        finally:
            # A stopped program ends nothing, and a torchrun agent that is killed leaves its workers.
            for node in (0, 1):
                networks.clear(node)
    return found


def describe(death: Death) -> str:
    return f"{'the node in charge' if death.victim == 'in charge' else 'another node'} is {death.how}"


@dataclass
class Column:
    """A contestant with what has been found of it.

    Args:
        start: starts it for a job.
        installed: it can be started.
        found: the outcomes of each change.
    """

    start: Callable[[Job], AbstractContextManager[Contestant]]
    installed: bool = True
    found: dict[str, list[Outcome]] = field(default_factory=lambda: defaultdict(list))

    def is_futile(self, death: Death) -> bool:
        """Return whether the contestant is missing, or did not go on after the first such death."""
        first = self.found[describe(death)][:1]
        return not self.installed or any(isinstance(outcome, Failure) for outcome in first)


def make_columns(networks: NodeNetworks, torchft: str, *, defaults: bool) -> dict[str, Column]:
    """Return the contestants by their names.

    Args:
        networks: the networks of the nodes.
        torchft: an interpreter that has torchft; empty: without it.
        defaults: with their default limits of time too.
    """
    columns = {
        "Elastane": Column(lambda job: NodeRun(job, job.out / "run", networks, start=EACH, most=2 * EACH))
    }
    for name in ("defaults", "tuned") if defaults else ("tuned",):
        limits = node_torchrun.TUNED if name == "tuned" else DEFAULTS
        columns[f"torchrun, {name}"] = Column(partial(NodeTorchrun, networks=networks, limits=limits))
    for name in ("defaults", "tuned") if defaults else ("tuned",):
        limits = node_torchft.TUNED if name == "tuned" else DEFAULTS
        start = partial(NodeTorchft, networks=networks, limits=limits, python=torchft)
        columns[f"torchft, {name}"] = Column(start, installed=bool(torchft))
    return columns


def format_outcomes(outcomes: Sequence[Outcome], key: str) -> str:
    """Return the spread of what a change costs; beside the time of the first step, why none came."""
    values = [getattr(each, key) for each in outcomes if isinstance(each, Change)]
    failures = [each.reason for each in outcomes if isinstance(each, Failure)]
    spread = format_spread(values, "s", digits=2) if key.endswith("_s") else format_spread(values, digits=0)
    if not failures or (values and key != "first_s"):
        return spread
    reasons = ", ".join(sorted(set(failures))) if key == "first_s" else ""
    return f"{spread}; {len(failures)} of {len(outcomes)} {reasons}" if values else reasons


def format_columns(columns: dict[str, Column]) -> str:
    """Return the table: the usual steps, then what each change costs each contestant."""
    changes = (JOIN, *map(describe, DEATHS))
    usual = {"one node": changes[:1], "two nodes": changes[1:]}
    rows = []
    for nodes, kinds in usual.items():
        found = [[each for kind in kinds for each in column.found[kind]] for column in columns.values()]
        settled = [[each for each in outcomes if isinstance(each, Change)] for outcomes in found]
        rows.append([f"usual step, {nodes}", "", *(format_outcomes(each, "usual_s") for each in settled)])
    for change in changes:
        for key, label in LABELS.items():
            cells = [format_outcomes(column.found[change], key) for column in columns.values()]
            rows.append([change if key == "first_s" else "", label, *cells])
    return format_table(["", "", *columns], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(workload.SIZES), default="4m")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--within", type=float, default=120.0, help="seconds to wait for a step at the new size"
    )
    parser.add_argument("--torchft", default=sys.executable, help="a Python that has torchft and torch")
    parser.add_argument("--quick", action="store_true", help="one repetition, without default limits of time")
    options = parser.parse_args()
    enter_first_node()
    exit_on_sigterm()
    repetitions = 1 if options.quick else options.repetitions
    # No multiple of the steps between two snapshots: a death comes about halfway between them.
    extent = Extent(calm_steps=15 if options.quick else 25, within_s=options.within)
    version = find_torchft_version(options.torchft)
    with tempfile.TemporaryDirectory() as folder, NodeNetworks() as networks:
        columns = make_columns(networks, options.torchft if version else "", defaults=not options.quick)
        turns = product(range(repetitions), DEATHS, columns.items())
        for number, (repetition, death, (name, column)) in enumerate(turns):
            if column.is_futile(death):
                continue
            job = Job(options.size, ENDLESS, VIRTUAL_RANKS, Path(folder) / str(number))
            for change, outcome in measure(partial(column.start, job), networks, death, extent).items():
                column.found[change].append(outcome)
                print(f"{repetition + 1}. {name}: {change}: {outcome}", flush=True)
            shutil.rmtree(job.out)
    print(f"\n{find_cpu()}, commit {describe_commit()}, model {options.size}, {repetitions} repetitions")
    print(f"torch {find_version('torch')}, {version or f'torchft is {node_torchft.INSTALL}'}\n")
    print(format_columns(columns))


if __name__ == "__main__":
    main()
