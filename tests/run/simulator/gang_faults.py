"""Faults of one process of a gang other than process 0, which the usual faults concern."""

from typing import TypeAlias

import msgspec


class KillProcess(msgspec.Struct, frozen=True, tag=True):
    """The death of a process; ``which`` selects a living worker, and ``process`` one of its further ones."""

    at_s: float
    which: int
    process: int


class FuseProcess(msgspec.Struct, frozen=True, tag=True):
    """The death of a process after ``orders`` more orders from ``at_s`` on, between two of them."""

    at_s: float
    which: int
    process: int
    orders: int


class PauseProcess(msgspec.Struct, frozen=True, tag=True):
    """A SIGSTOP; the agent kills a worker of which a process is silent for too long."""

    at_s: float
    which: int
    process: int
    for_s: float


GangFault: TypeAlias = KillProcess | FuseProcess | PauseProcess
