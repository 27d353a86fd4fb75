"""The times at which a contestant's processes began each microbatch and finished or discarded each step.

The contestants write them, and the harness reads them. Times are seconds of the machine's monotonic clock,
which all processes share.
"""

import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import blocks
import turns

Kind: TypeAlias = Literal["microbatch", "step", "discarded"]
KINDS: dict[str, Kind] = {kind[0]: kind for kind in get_args(Kind)}
"""The kinds by their letters in the files."""


@dataclass(frozen=True)
class Tick:
    """A time in a process.

    Args:
        pid: the process.
        step: the number of the step.
        at_s: the time.
        kind: the process began a microbatch of the step, finished the step, or discarded it.
        workers: the number of workers of a finished step; 0: not known.
    """

    pid: int
    step: int
    at_s: float
    kind: Kind
    workers: int = 0


class TickWriter:
    """Writes the ticks of this process; with turns (see `turns` and `blocks`), each step waits for its turn.

    Args:
        out: the folder of all ticks.
    """

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.file = (out / f"{os.getpid()}.ticks").open("a", buffering=1)
        self._turns = turns.TurnTaker() if turns.FOLDER in os.environ else None
        self._blocks = blocks.BlockTaker() if blocks.FILE in os.environ else None
        self._step = 0

    def record_begin(self, step: int) -> None:
        if self._turns is not None and step != self._step:
            self._turns.take()
        if self._blocks is not None and not self._step:
            self._blocks.take()
        self._step = step
        self.file.write(f"m {step} {time.monotonic():.6f}\n")

    def record_end(self, step: int, workers: int = 0) -> None:
        self.file.write(f"s {step} {time.monotonic():.6f} {workers}\n")
        if self._blocks is not None:
            # Between two steps, where a worker may be silent for long.
            self._blocks.take()

    def record_discard(self, step: int) -> None:
        """Record that the step has to be made again."""
        self.file.write(f"d {step} {time.monotonic():.6f}\n")


def read_all(out: Path) -> list[Tick]:
    """Return all ticks so far in the order of time; an incomplete line is left for later."""
    found = []
    for path in out.glob("*.ticks"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                letter, step, at_s, *workers = line.split()
                found.append(Tick(int(path.stem), int(step), float(at_s), KINDS[letter], *map(int, workers)))
    return sorted(found, key=lambda tick: tick.at_s)


def read_steps(out: Path) -> list[Tick]:
    return [tick for tick in read_all(out) if tick.kind == "step"]


def read_microbatches(out: Path) -> list[Tick]:
    return [tick for tick in read_all(out) if tick.kind == "microbatch"]


def count_discarded_steps(out: Path, since_s: float) -> int:
    """Return how many steps the process that discarded most has discarded since a monotonic time."""
    pids = [tick.pid for tick in read_all(out) if tick.kind == "discarded" and tick.at_s > since_s]
    return max((pids.count(pid) for pid in pids), default=0)


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
