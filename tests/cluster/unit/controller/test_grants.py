"""The pools of workers, for engines that can only count them."""

from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.controller.jobs.grants import assign_pools, count_held

POOLS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 6), max_size=3)


def test_workers_that_may_stay_keep_their_pool() -> None:
    assert assign_pools(4, {"a": 2, "b": 2}, {"a": 2}) == {"a": 2, "b": 2}


def test_leaving_workers_keep_their_pool() -> None:
    assert assign_pools(4, {"a": 2}, {"a": 3, "b": 1}) == {"a": 3, "b": 1}


def test_with_fewer_workers_than_granted_none_counts_in_a_new_pool() -> None:
    assert assign_pools(2, {"a": 2, "b": 2}, {"a": 2}) == {"a": 2}


def test_a_move_is_done_when_the_engine_has_the_granted_number() -> None:
    assert assign_pools(2, {"b": 2}, {"a": 2}) == {"b": 2}


@given(st.integers(0, 12), POOLS, POOLS)
def test_every_worker_has_a_pool(workers: int, granted: dict[str, int], before: dict[str, int]) -> None:
    found = assign_pools(workers, granted, before)
    assert sum(found.values()) == (workers if granted or before else 0)
    assert all(found.values())


@given(st.integers(0, 12), POOLS, POOLS)
def test_granted_pools_fill_before_other_pools(
    workers: int, granted: dict[str, int], before: dict[str, int]
) -> None:
    found = assign_pools(workers, granted, before)
    if any(found.get(pool, 0) > granted.get(pool, 0) for pool in found):
        assert all(found.get(pool, 0) >= most for pool, most in granted.items())


def test_the_old_grant_counts_as_held_after_a_smaller_one() -> None:
    assert count_held({"a": 4}, {"a": 3}, {}) == {"a": 4}
    assert count_held({}, {"a": 2}, {"a": 4}) == {}
    # No agent has answered for the job yet, and none may before it has begun with all five workers.
    assert count_held({"a": 1}, {"a": 3, "b": 2}, {"a": 2, "b": 2}) == {"a": 3, "b": 2}
