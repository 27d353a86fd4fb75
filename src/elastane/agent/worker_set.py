"""The desired and the running workers of a run. Pure; `elastane.agent.workers` acts on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elastane.api.control import WorkerExit
from elastane.api.membership import WorkerId

REMEMBERED_EXITS = 256


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """Desired and actual workers.

    Args:
        target: how many should run.
        draining: workers that the coordinator asked to leave.
        following: the number of the next worker; no number is used twice.
        asked: workers that were requested from a fork server and have not started yet.
        living: process ids of the running workers.
        exits: the latest exits, oldest first.
        by_hand: a user has set the target.
    """

    target: int
    draining: tuple[WorkerId, ...] = ()
    following: WorkerId = 0
    asked: tuple[WorkerId, ...] = ()
    living: Mapping[WorkerId, int] = field(default_factory=dict)
    exits: tuple[WorkerExit, ...] = ()
    by_hand: bool = False


def request_missing(staff: WorkerSet) -> tuple[WorkerSet, tuple[WorkerId, ...]]:
    """Request the missing workers and return their numbers; the coordinator dismisses a surplus."""
    missing = max(0, staff.target - len(staff.living) - len(staff.asked))
    numbers = tuple(range(staff.following, staff.following + missing))
    return replace(staff, following=staff.following + missing, asked=staff.asked + numbers), numbers


def keep_missing_requests(staff: WorkerSet) -> WorkerSet:
    """Keep those requests to a dead fork server that are still needed."""
    return replace(staff, asked=staff.asked[: max(0, staff.target - len(staff.living))])


def record_start(staff: WorkerSet, worker: WorkerId, pid: int) -> WorkerSet:
    asked = tuple(other for other in staff.asked if other != worker)
    return replace(staff, asked=asked, living={**staff.living, worker: pid})


def record_exit(staff: WorkerSet, ending: WorkerExit) -> WorkerSet:
    """Record the exit of a worker; the first of several reports of one exit counts."""
    if any(known.worker == ending.worker for known in staff.exits):
        return staff
    living = {worker: pid for worker, pid in staff.living.items() if worker != ending.worker}
    asked = tuple(other for other in staff.asked if other != ending.worker)
    return replace(staff, asked=asked, living=living, exits=(*staff.exits, ending)[-REMEMBERED_EXITS:])
