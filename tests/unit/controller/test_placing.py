"""In which pools workers are that can only be counted."""

from hypothesis import given
from hypothesis import strategies as st

from elastane.controller.jobs.placement import assign_pools, count_held

POOLS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 6), max_size=3)


def test_those_who_may_stay_do() -> None:
    assert assign_pools(4, {"a": 2, "b": 2}, {"a": 2}) == {"a": 2, "b": 2}


def test_those_on_their_way_out_are_where_they_were() -> None:
    assert assign_pools(4, {"a": 2}, {"a": 3, "b": 1}) == {"a": 3, "b": 1}


def test_of_fewer_than_were_granted_none_has_arrived_elsewhere() -> None:
    assert assign_pools(2, {"a": 2, "b": 2}, {"a": 2}) == {"a": 2}


def test_a_move_is_done_when_the_engine_has_the_number() -> None:
    assert assign_pools(2, {"b": 2}, {"a": 2}) == {"b": 2}


@given(st.integers(0, 12), POOLS, POOLS)
def test_everybody_is_somewhere(workers: int, granted: dict[str, int], before: dict[str, int]) -> None:
    found = assign_pools(workers, granted, before)
    assert sum(found.values()) == (workers if granted or before else 0)
    assert all(found.values())


@given(st.integers(0, 12), POOLS, POOLS)
def test_nobody_is_where_the_grant_wants_nobody_before_it_has_what_it_wants(
    workers: int, granted: dict[str, int], before: dict[str, int]
) -> None:
    found = assign_pools(workers, granted, before)
    if any(found.get(pool, 0) > granted.get(pool, 0) for pool in found):
        assert all(found.get(pool, 0) >= most for pool, most in granted.items())


def test_what_was_granted_counts_as_held_once_less_is_given() -> None:
    assert count_held({"a": 4}, {"a": 3}, {}) == {"a": 4}
    assert count_held({}, {"a": 2}, {"a": 4}) == {}
    # Nobody has answered for the job yet, and nobody may before it has begun with all five.
    assert count_held({"a": 1}, {"a": 3, "b": 2}, {"a": 2, "b": 2}) == {"a": 3, "b": 2}
