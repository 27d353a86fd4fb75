"""The times at which a contestant's processes began each microbatch and finished each step.

The contestants write them, and the harness reads them. Times are seconds of the machine's monotonic clock,
which all processes share.
"""

import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Tick:
    """The time ``at_s`` at which process ``pid`` finished ``step``, or began a ``microbatch`` of it."""

    pid: int
    step: int
    at_s: float
    microbatch: bool = False


class TickWriter:
    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.file = (out / f"{os.getpid()}.ticks").open("a", buffering=1)

    def record_begin(self, step: int) -> None:
        self.file.write(f"m {step} {time.monotonic():.6f}\n")

    def record_end(self, step: int) -> None:
        self.file.write(f"s {step} {time.monotonic():.6f}\n")


def read_all(out: Path) -> list[Tick]:
    """Return all ticks so far in the order of time; an incomplete line is left for later."""
    found = []
    for path in out.glob("*.ticks"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                kind, step, at_s = line.split()
                found.append(Tick(int(path.stem), int(step), float(at_s), microbatch=kind == "m"))
    return sorted(found, key=lambda tick: tick.at_s)


def read_steps(out: Path) -> list[Tick]:
    return [tick for tick in read_all(out) if not tick.microbatch]


def read_microbatches(out: Path) -> list[Tick]:
    return [tick for tick in read_all(out) if tick.microbatch]


def select_process(pid: int, ticks: list[Tick]) -> list[Tick]:
    return [tick for tick in ticks if tick.pid == pid]


def compute_durations_s(ticks: list[Tick]) -> dict[int, float]:
    """Return the seconds from the end of the step before to the end of each step, of one process."""
    return {after.step: after.at_s - before.at_s for before, after in pairwise(ticks)}


def compute_mean_durations_s(seen: list[Tick]) -> dict[int, float]:
    """Return the seconds of each step: the mean of all processes, which wait for one another."""
    each = [compute_durations_s(select_process(pid, seen)) for pid in {tick.pid for tick in seen}]
    common = set[int].intersection(*(set(one) for one in each))
    return {step: sum(one[step] for one in each) / len(each) for step in sorted(common)}


def find_slowest_s(ticks: list[Tick], begin_s: float, end_s: float) -> float:
    """Return the longest step of one process that overlaps the time from ``begin_s`` to ``end_s``."""
    return max(b.at_s - a.at_s for a, b in pairwise(ticks) if a.at_s < end_s and b.at_s > begin_s)
