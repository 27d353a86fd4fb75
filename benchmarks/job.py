"""The job of a contestant, as a value and as a command line."""

import argparse
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).parent
COLLECTIVE_TIMEOUT = "BENCHMARK_COLLECTIVE_TIMEOUT_S"
"""The variable with the longest time that a collective operation of a contestant may take, in seconds."""


@dataclass(frozen=True)
class Job:
    """One training job.

    Args:
        size: a key of `workload.SIZES`.
        steps: the number of optimizer steps.
        virtual_ranks: the number of microbatches per step, over all workers.
        out: the folder for the times of the steps, one file per process.
    """

    size: str
    steps: int
    virtual_ranks: int
    out: Path

    def build_arguments(self) -> list[str]:
        return [
            f"--size={self.size}",
            f"--steps={self.steps}",
            f"--virtual-ranks={self.virtual_ranks}",
            f"--out={self.out}",
        ]

    def build_script_command(self, contestant: str) -> list[str]:
        """Return the script and arguments of ``train_<contestant>.py``."""
        return [str(HERE / f"train_{contestant}.py"), *self.build_arguments()]

    def build_command(self, contestant: str) -> list[str]:
        return [sys.executable, *self.build_script_command(contestant)]


def parse_job() -> Job:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--virtual-ranks", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    return Job(options.size, options.steps, options.virtual_ranks, options.out)


def read_collective_timeout(default: timedelta) -> timedelta:
    """Return the longest time that a collective operation may take."""
    return timedelta(seconds=float(os.environ.get(COLLECTIVE_TIMEOUT, default.total_seconds())))
