"""Which workers should run and which do. Pure: the agent makes it so."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elastane.api.control import WorkerExit
from elastane.api.membership import WorkerId

REMEMBERED_EXITS = 256


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """Desired and actual workers.

    Args:
        target: how many should live.
        draining: those asked to leave, as the coordinator said.
        following: number of the next worker; none is used twice.
        asked: workers a fork server was asked for and that have not started yet.
        living: process ids.
        exits: latest ones, oldest first.
        by_hand: a human has said how many should live.
    """

    target: int
    draining: tuple[WorkerId, ...] = ()
    following: WorkerId = 0
    asked: tuple[WorkerId, ...] = ()
    living: Mapping[WorkerId, int] = field(default_factory=dict)
    exits: tuple[WorkerExit, ...] = ()
    by_hand: bool = False


def request_missing(staff: WorkerSet) -> tuple[WorkerSet, tuple[WorkerId, ...]]:
    """Asks for as many workers as are missing; a surplus is the coordinator's to dismiss."""
    missing = max(0, staff.target - len(staff.living) - len(staff.asked))
    numbers = tuple(range(staff.following, staff.following + missing))
    return replace(staff, following=staff.following + missing, asked=staff.asked + numbers), numbers


def keep_missing_requests(staff: WorkerSet) -> WorkerSet:
    """Of those a dead fork server was asked for, the ones that are still missing."""
    return replace(staff, asked=staff.asked[: max(0, staff.target - len(staff.living))])


def record_start(staff: WorkerSet, worker: WorkerId, pid: int) -> WorkerSet:
    asked = tuple(other for other in staff.asked if other != worker)
    return replace(staff, asked=asked, living={**staff.living, worker: pid})


def record_exit(staff: WorkerSet, ending: WorkerExit) -> WorkerSet:
    """Counts the end of a worker; the first word about it is the one that is kept."""
    if any(known.worker == ending.worker for known in staff.exits):
        return staff
    living = {worker: pid for worker, pid in staff.living.items() if worker != ending.worker}
    asked = tuple(other for other in staff.asked if other != ending.worker)
    return replace(staff, asked=asked, living=living, exits=(*staff.exits, ending)[-REMEMBERED_EXITS:])
