"""Programs on the two nodes of `NodeNetworks`, with the times of the steps that their workers write."""

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import ticks
from job import Job
from node_networks import NodeNetworks
from processes import Processes

EACH = 2
"""The workers of a node."""


@dataclass(frozen=True)
class TimeLimits:
    """The limits of time of a contestant.

    Args:
        options: those of the program by which the nodes find each other, in its own notation.
        environment: the variables of the script that set its limits.
    """

    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


DEFAULTS = TimeLimits()


def describe_exits(programs: Iterable["subprocess.Popen[bytes]"]) -> str:
    """Return how some of the programs have ended by themselves; an empty text while all run."""
    codes = sorted({str(code) for program in programs if (code := program.poll()) is not None})
    return f"its programs end with code {', '.join(codes)}" if codes else ""


class NodePrograms:
    """``with NodePrograms(...) as run:`` ends the programs with the block.

    `NodeNetworks.clear` ends what they have started too.

    Args:
        job: the job to train.
        networks: the networks of the nodes.
    """

    def __init__(self, job: Job, networks: NodeNetworks) -> None:
        self.job = job
        self._networks = networks
        self._processes = Processes(job.out / "logs")
        self._programs: dict[int, list[subprocess.Popen[bytes]]] = {0: [], 1: []}

    def start(self, node: int, command: list[str], **environment: str) -> None:
        """Start a program on a node."""
        program = self._processes.start(self._networks.wrap_command(node, command), **environment)
        self._programs[node].append(program)

    def read_steps(self) -> list[ticks.Tick]:
        """Return the finished steps, with the numbers of their workers."""
        return ticks.read_steps(self.job.out)

    def count_discarded_steps(self, since_s: float) -> int:
        """Return how many steps were discarded since a monotonic time."""
        return ticks.count_discarded_steps(self.job.out, since_s)

    def find_failure(self) -> str:
        """Return the last output of the first program that has failed; an empty text while all run."""
        return self._processes.find_failure()

    def describe_exit(self, node: int) -> str:
        """Return how a program of a node has ended by itself; an empty text while all run."""
        return describe_exits(self._programs[node])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.__exit__(kind, error, trace)
