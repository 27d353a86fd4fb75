"""The desired and the running workers of a run. Pure; `elastane.run.agent.workers` acts on it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from elastane.run.nouns.control import FOUND_WRONG, Numbers, SetTarget, WorkerExit
from elastane.run.nouns.heartbeat_file import SLOTS, compute_slot_offset
from elastane.run.nouns.membership import NUMBERS_AT_ONCE, NodeAddress, WorkerId

REMEMBERED_EXITS = 256


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """Desired and actual workers.

    Args:
        numbers: the ranges of numbers that new workers may get, in order; no number is used twice.
        total: how many should run on all nodes; 0: unknown.
        draining: workers that the coordinator asked to leave.
        requested: workers that were requested from a fork server and have not started yet.
        living: process ids of the running workers.
        exits: the latest exits, oldest first.
        by_hand: a user has set the target.
        claimed: the newest claimed generation that the coordinator has named.
        closed: why this node gets no further workers; empty: it does.
        processes: of each worker.
    """

    target: int
    numbers: tuple[Numbers, ...] = ((0, NUMBERS_AT_ONCE),)
    total: int = 0
    nodes: tuple[NodeAddress, ...] = ()
    draining: tuple[WorkerId, ...] = ()
    requested: tuple[WorkerId, ...] = ()
    living: Mapping[WorkerId, int] = field(default_factory=dict)
    exits: tuple[WorkerExit, ...] = ()
    by_hand: bool = False
    claimed: int = 0
    closed: str = ""
    processes: int = 1

    @property
    def numbers_end(self) -> int:
        """The end of the highest range of numbers that the agent has had; ranges are in order."""
        return self.numbers[-1][1] if self.numbers else 0


def has_other_nodes(workers: WorkerSet) -> bool:
    """Return whether other nodes should have workers of the run too."""
    return workers.total > workers.target


def request_missing(workers: WorkerSet) -> tuple[WorkerSet, tuple[WorkerId, ...]]:
    """Request the missing workers and return their numbers; the coordinator dismisses a surplus.

    A worker that is asked to leave is replaced after it has left, which gives its device back; but if no
    worker stays, its replacement must first receive the state. Without numbers left, request fewer: the
    coordinator sends more numbers before they run out.
    """
    present = (*workers.living, *workers.requested)
    stays = bool(set(present) - set(workers.draining))
    most = min(workers.target, SLOTS // workers.processes)
    missing = max(0, most - (len(present) if stays else 0))
    numbers, rest = take_numbers(workers.numbers, missing, present, workers.processes)
    return replace(workers, numbers=rest, requested=workers.requested + numbers), numbers


def take_numbers(
    ranges: tuple[Numbers, ...], count: int, present: Collection[WorkerId] = (), processes: int = 1
) -> tuple[tuple[WorkerId, ...], tuple[Numbers, ...]]:
    """Take the next numbers from some ranges; return them, and the rest of the ranges.

    A number is left out, for good, if a present worker has its slot of the heartbeat file. The last range
    stays, even if it is empty: its end says up to where numbers are used.

    Args:
        present: the workers that run or were requested.
        processes: of each worker.
    """
    slots = {compute_slot_offset(worker, processes=processes) for worker in present}
    taken: list[WorkerId] = []
    rest: list[Numbers] = []
    for first, end in ranges:
        number = first
        while number < end and len(taken) < count:
            if (slot := compute_slot_offset(number, processes=processes)) not in slots:
                slots.add(slot)
                taken.append(number)
            number += 1
        if number < end or (first, end) == ranges[-1]:
            rest.append((number, end))
    return tuple(taken), tuple(rest)


def follow_order(workers: WorkerSet, order: SetTarget) -> WorkerSet:
    """Return the workers with the numbers in an order; the same order may arrive twice."""
    numbers = workers.numbers
    if order.numbers is not None and order.numbers[0] >= workers.numbers_end:
        numbers = (*numbers, order.numbers)
    return replace(
        workers,
        target=order.target,
        numbers=numbers,
        total=order.total,
        nodes=order.nodes,
        draining=order.drain,
        by_hand=order.by_hand,
        claimed=order.claimed,
        closed=order.closed,
    )


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
    # No worker replaces one that a spot check has found wrong; the coordinator's next order says so too.
    is_left_out = ending.code == FOUND_WRONG and workers.target > 1
    target = workers.target - 1 if is_left_out else workers.target
    exits = (*workers.exits, ending)[-REMEMBERED_EXITS:]
    return replace(workers, target=target, requested=requested, living=living, exits=exits)
