"""The meaning of the end of one process of a world."""

import signal

from elastane.run.nouns.resources import RESOURCES
from elastane.run.scripts.worlds.state import LocalRank

SHELL = 128
"""A program that notices a signal by itself ends with this plus its number, as a shell does."""
FROM_OUTSIDE = frozenset(
    code for number in (signal.SIGKILL, signal.SIGTERM) for code in (-int(number), SHELL + int(number))
)
"""Exit codes of a process that another process has ended: a user, a cluster, or the kernel without memory."""


def is_death(code: int) -> bool:
    """Return whether a process was ended from outside, or could not be started: its script has not failed."""
    return code in FROM_OUTSIDE or code in RESOURCES


def describe_rank_end(code: int) -> str:
    """Describe the end of a process, such as "killed by SIGKILL" or "exit code 3"."""
    if (resource := RESOURCES.get(code)) is not None:
        return f"out of {resource.name}: {resource.do}"
    if code in FROM_OUTSIDE and code > 0:
        return f"exit code {code}, as after {signal.Signals(code - SHELL).name}"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def name_rank(rank: LocalRank, processes: int) -> str:
    """Return the name of a process in events: ``worker 2``, or ``worker 2, process 1`` of several."""
    return f"worker {rank.worker}" + (f", process {rank.local}" if processes > 1 else "")
