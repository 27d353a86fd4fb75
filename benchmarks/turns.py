"""Turns of contestants: each makes one step, then the next one does, and all others wait.

Two processes of one program differ in speed by a tenth, and so does one process from minute to minute.
Contestants that make their steps in turns see the same minute. A contestant with several workers has a ring
for each of them.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FOLDER, NAME, NEXT = "BENCHMARK_TURNS", "BENCHMARK_TURN_NAME", "BENCHMARK_TURN_NEXT"
"""The variables of a contestant: the folder of all turns, its own name and that of the next contestant."""


def make_rings(folder: Path, names: Sequence[str], workers: int) -> list[dict[str, str]]:
    """Make the rings of some contestants; return the variables of each of them."""
    folder.mkdir(parents=True)
    for name in names:
        for index in range(workers):
            os.mkfifo(folder / f"{name}-{index}")
    following = [*names[1:], names[0]]
    return [
        {FOLDER: str(folder), NAME: name, NEXT: next_name}
        for name, next_name in zip(names, following, strict=True)
    ]


def begin_turns(folder: Path, name: str, workers: int) -> None:
    """Give the first turn to a contestant; all must have reached their first step."""
    for index in range(workers):
        _pass_turn(folder / f"{name}-{index}")


def count_waiting(folder: Path) -> int:
    """Return the number of processes that have reached their first step."""
    return len(list(folder.glob("*.seconds")))


def read_steps(folder: Path, name: str) -> list[float]:
    """Return the seconds of each turn of a contestant, those of its slowest worker."""
    rings = [path.read_text().splitlines() for path in sorted(folder.glob(f"{name}-*.seconds"))]
    return [max(map(float, turn)) for turn in zip(*rings, strict=False)]


class TurnTaker:
    """One worker of a contestant; the environment names its contestant."""

    def __init__(self) -> None:
        folder, name = Path(os.environ[FOLDER]), os.environ[NAME]
        index = _claim_index(folder, name)
        self._own = os.open(folder / f"{name}-{index}", os.O_RDWR)
        self._next = folder / f"{os.environ[NEXT]}-{index}"
        self._seconds = (folder / f"{name}-{index}.seconds").open("a", buffering=1)
        self._began_s: float | None = None

    def take(self) -> None:
        """End this worker's turn, if it has one, and wait for the next one."""
        if self._began_s is not None:
            self._seconds.write(f"{time.monotonic() - self._began_s:.6f}\n")
            _pass_turn(self._next)
        os.read(self._own, 1)
        self._began_s = time.monotonic()


def _claim_index(folder: Path, name: str) -> int:
    for index in range(64):
        with suppress(FileExistsError):
            (folder / f"{name}-{index}.seconds").touch(exist_ok=False)
            return index
    raise RuntimeError(f"{name} has more workers than rings")


def _pass_turn(ring: Path) -> None:
    descriptor = os.open(ring, os.O_RDWR | os.O_NONBLOCK)
    # The byte outlives this descriptor only while another process has the pipe open, as its reader does.
    os.write(descriptor, b"t")
    os.close(descriptor)
