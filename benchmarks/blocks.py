"""Blocks of steps of contestants in turns: all are there at once, and one of them trains for some seconds.

Unlike `turns`, a contestant keeps its turn while its workers join, die and wait for one another.
"""

import os
import time
from pathlib import Path

FILE, NAME = "BENCHMARK_BLOCKS", "BENCHMARK_BLOCK_NAME"
"""The variables of a contestant: the file with the name of the one that trains, and its own name."""
LOOK_S = 0.005


def build_environment(file: Path, name: str) -> dict[str, str]:
    """Return the variables of a contestant."""
    return {FILE: str(file.absolute()), NAME: name}


def begin_block(file: Path, name: str) -> None:
    """Let this contestant train, and the others stop after the step that they compute."""
    new = file.with_suffix(".new")
    new.write_text(name)
    new.replace(file)


class BlockTaker:
    """A process of a contestant; the environment names its contestant."""

    def __init__(self) -> None:
        self._file, self._name = Path(os.environ[FILE]), os.environ[NAME]

    def take(self) -> None:
        """Wait for the turn of the contestant."""
        while self._file.read_text() != self._name:
            time.sleep(LOOK_S)
