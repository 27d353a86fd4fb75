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
        next_worker: the number of the next worker; no number is used twice.
        requested: workers that were requested from a fork server and have not started yet.
        living: process ids of the running workers.
        exits: the latest exits, oldest first.
        by_hand: a user has set the target.
    """

    target: int
    draining: tuple[WorkerId, ...] = ()
    next_worker: WorkerId = 0
    requested: tuple[WorkerId, ...] = ()
    living: Mapping[WorkerId, int] = field(default_factory=dict)
    exits: tuple[WorkerExit, ...] = ()
    by_hand: bool = False


def request_missing(workers: WorkerSet) -> tuple[WorkerSet, tuple[WorkerId, ...]]:
    """Request the missing workers and return their numbers; the coordinator dismisses a surplus."""
    missing = max(0, workers.target - len(workers.living) - len(workers.requested))
    numbers = tuple(range(workers.next_worker, workers.next_worker + missing))
    return replace(
        workers, next_worker=workers.next_worker + missing, requested=workers.requested + numbers
    ), numbers


def keep_missing_requests(workers: WorkerSet) -> WorkerSet:
    """Keep those requests to a dead fork server that are still needed."""
    return replace(workers, requested=workers.requested[: max(0, workers.target - len(workers.living))])


def record_start(workers: WorkerSet, worker: WorkerId, pid: int) -> WorkerSet:
    requested = tuple(other for other in workers.requested if other != worker)
    return replace(workers, requested=requested, living={**workers.living, worker: pid})


def record_exit(workers: WorkerSet, ending: WorkerExit) -> WorkerSet:
    """Record the exit of a worker; the first of several reports of one exit counts."""
    if any(known.worker == ending.worker for known in workers.exits):
        return workers
    living = {worker: pid for worker, pid in workers.living.items() if worker != ending.worker}
    requested = tuple(other for other in workers.requested if other != ending.worker)
    return replace(
        workers, requested=requested, living=living, exits=(*workers.exits, ending)[-REMEMBERED_EXITS:]
    )
