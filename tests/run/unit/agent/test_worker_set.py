"""The agent keeps the target number of workers, and uses no number twice."""

from dataclasses import replace

from elastane.run.agent.restarts import Deaths
from elastane.run.agent.worker_set import (
    WorkerSet,
    has_other_nodes,
    keep_missing_requests,
    record_exit,
    record_start,
    request_missing,
)
from elastane.run.nouns.control import FOUND_WRONG, WorkerExit
from elastane.run.nouns.heartbeat_file import SLOTS, compute_slot_offset


def exit_of(worker: int, code: int = -9) -> WorkerExit:
    return WorkerExit(worker=worker, pid=100 + worker, code=code)


def test_missing_workers_are_requested_once() -> None:
    workers, numbers = request_missing(WorkerSet(target=2))
    assert numbers == (0, 1)
    assert request_missing(workers)[1] == ()


def test_dead_workers_are_replaced_under_new_numbers() -> None:
    workers, _ = request_missing(WorkerSet(target=2))
    workers = record_start(record_start(workers, 0, 100), 1, 101)
    workers, numbers = request_missing(record_exit(workers, exit_of(0)))
    assert numbers == (2,)
    assert dict(workers.living) == {1: 101}


def test_no_worker_replaces_one_that_a_spot_check_has_found_wrong() -> None:
    workers = WorkerSet(target=3, living={0: 100, 1: 101, 2: 102})
    workers, numbers = request_missing(record_exit(workers, exit_of(1, FOUND_WRONG)))
    assert (workers.target, numbers) == (2, ())
    alone = record_exit(WorkerSet(target=1, living={0: 100}), exit_of(0, FOUND_WRONG))
    assert alone.target == 1, "a run keeps a worker"


def test_a_worker_that_is_missing_here_is_not_on_another_node() -> None:
    assert not has_other_nodes(WorkerSet(target=2, total=2, living={0: 100}))
    assert has_other_nodes(WorkerSet(target=2, total=3, living={0: 100, 1: 101}))


def test_only_requests_up_to_the_target_are_kept() -> None:
    workers, _ = request_missing(WorkerSet(target=3))
    workers = record_start(workers, 0, 100)
    assert keep_missing_requests(workers).requested == (1, 2)
    assert keep_missing_requests(replace(workers, target=2)).requested == (1,)
    assert keep_missing_requests(replace(workers, target=0)).requested == ()


def test_no_two_workers_share_a_slot_of_the_heartbeat_file() -> None:
    granted = (4 * SLOTS + 1, 4 * SLOTS + 101)
    workers = WorkerSet(target=6, numbers=(granted,), requested=(2,), living={1: 100, 3: 101, SLOTS + 5: 102})
    workers, numbers = request_missing(workers)
    assert numbers == (4 * SLOTS + 4, 4 * SLOTS + 6)
    # Numbers that were left out are not used later either.
    assert workers.numbers == ((4 * SLOTS + 7, granted[1]),)
    offsets = {compute_slot_offset(worker) for worker in (*workers.living, *workers.requested)}
    assert len(offsets) == 6


def test_a_machine_has_no_more_workers_than_the_heartbeat_file_has_slots() -> None:
    workers, numbers = request_missing(WorkerSet(target=2 * SLOTS, numbers=((100, 3 * SLOTS),)))
    assert numbers == tuple(range(100, 100 + SLOTS))
    assert request_missing(workers) == (workers, ())


def test_the_agent_leaves_surplus_workers_to_the_coordinator() -> None:
    workers = WorkerSet(target=1, living={0: 100, 1: 101})
    assert request_missing(workers)[1] == ()


def test_an_exit_counts_once() -> None:
    workers = record_exit(WorkerSet(target=1, living={0: 100}), exit_of(0))
    assert record_exit(workers, exit_of(0, code=0)) == workers


def test_only_deaths_close_together_are_too_many() -> None:
    deaths = Deaths(within_s=10)
    for now in (0, 3, 6, 9, 12):
        deaths = deaths.add(now, 1)
    assert not deaths.too_many
    assert deaths.add(12.5, 1).too_many
