"""Which node starts the next term, and when."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from elastane.run.machines.claims.records import GenerationClaim
from elastane.run.machines.succession.takeover import (
    CoordinatorHeard,
    SilenceView,
    decide_takeover,
    is_left_out,
)
from elastane.run.nouns.silence_limits import SilenceLimits

LIMITS = SilenceLimits()

NODES = ("", "a", "b", "c")


def decide(node: str, silent_s: float, **answers: float | None) -> bool:
    return decide_takeover(SilenceView(node, silent_s, hear(answers), "", LIMITS)).now


def hear(answers: dict[str, float | None], workers: int = 0) -> dict[str, CoordinatorHeard | None]:
    """Return the answers of nodes that heard the coordinator so many seconds ago."""
    return {name: None if s is None else CoordinatorHeard(s, workers) for name, s in answers.items()}


def test_a_coordinator_that_another_node_hears_keeps_its_term() -> None:
    assert not decide("b", 60.0, a=0.2, c=9.0)
    assert decide("b", 60.0, a=9.0, c=9.0)


def test_nodes_take_turns_by_name_and_dead_ones_have_none() -> None:
    first, second = LIMITS.limit_s + LIMITS.turn_s, LIMITS.limit_s + 2 * LIMITS.turn_s
    assert decide("a", first, b=first)
    assert not decide("b", first, a=first)
    assert decide("b", second, a=second)
    assert decide("b", first, a=None)


def test_nodes_with_less_than_half_of_the_workers_wait_for_the_others() -> None:
    view = SilenceView("b", LIMITS.limit_s + LIMITS.turn_s, {"c": None}, "", LIMITS, workers=1, total=3)
    assert not decide_takeover(view).now
    assert "1 of 3 workers" in decide_takeover(view).why
    assert decide_takeover(replace(view, silent_s=LIMITS.limit_s + LIMITS.turn_s + LIMITS.minority_s)).now
    assert decide_takeover(replace(view, total=2)).now
    assert decide_takeover(replace(view, answers=hear({"c": LIMITS.limit_s}, workers=1))).now


def test_nodes_without_most_workers_leave_a_coordinator_in_charge_that_renews_its_sign() -> None:
    view = SilenceView("b", 10.0, {"c": None}, "", LIMITS, renewed_s=1.0, workers=2, total=4)
    assert not decide_takeover(view).now
    assert "at work" in decide_takeover(view).why
    assert decide_takeover(replace(view, workers=3)).now
    assert decide_takeover(replace(view, renewed_s=LIMITS.limit_s)).now
    # Perhaps it hears no worker itself.
    assert decide_takeover(replace(view, silent_s=LIMITS.unseen_s)).now


def test_the_node_of_the_silent_coordinator_goes_first() -> None:
    view = SilenceView("z", LIMITS.limit_s, hear({"a": LIMITS.limit_s}), "z", LIMITS)
    assert decide_takeover(view).now
    assert not decide("a", LIMITS.limit_s)


def test_the_node_of_the_silent_coordinator_has_no_turn_if_most_workers_hear_nothing_of_it() -> None:
    view = SilenceView("b", LIMITS.limit_s, {"z": None}, "z", LIMITS, workers=2, total=3)
    assert decide_takeover(view).now
    assert not decide_takeover(replace(view, total=4)).now
    # The other nodes here still have their turns.
    assert not decide_takeover(replace(view, answers=hear({"a": LIMITS.limit_s, "z": None}))).now


def test_a_node_without_an_order_of_the_run_takes_nothing_over() -> None:
    view = SilenceView("b", 50.0, {"": None}, "b", LIMITS, is_new=True)
    assert not decide_takeover(view).now
    assert decide_takeover(replace(view, is_new=False)).now


def test_a_node_that_was_left_out_takes_charge_only_if_nothing_is_left_of_the_run() -> None:
    view = SilenceView("b", 50.0, {"": None}, "", LIMITS, left_out=True, unseen_s=LIMITS.unseen_s - 0.1)
    assert not decide_takeover(view).now
    assert decide_takeover(replace(view, unseen_s=LIMITS.unseen_s)).now
    assert not decide_takeover(replace(view, unseen_s=LIMITS.unseen_s, answers=hear({"": 1.0}))).now


def test_a_node_without_which_the_run_has_gone_on_takes_nothing_over() -> None:
    claim = GenerationClaim(number=4, term=1, members=(0, 1), nonce="0" * 32)
    assert is_left_out([claim], {100, 101})
    assert not is_left_out([claim], {1, 100})
    assert not is_left_out([claim], set())
    assert not is_left_out([], {100})


@given(st.sets(st.sampled_from(NODES), min_size=1), st.floats(0, 10), st.sampled_from(NODES))
def test_among_nodes_that_all_answer_one_has_the_first_turn(
    nodes: set[str], silent_s: float, coordinator_node: str
) -> None:
    ready = [
        node
        for node in nodes
        if decide_takeover(
            SilenceView(
                node, silent_s, hear(dict.fromkeys(nodes - {node}, silent_s)), coordinator_node, LIMITS
            )
        ).now
    ]
    turns = 0 if silent_s < LIMITS.limit_s else 1 + int((silent_s - LIMITS.limit_s) / LIMITS.turn_s)
    silent_first = coordinator_node not in nodes
    assert len(ready) == min(max(0, turns - silent_first), len(nodes))


@given(st.dictionaries(st.sampled_from(NODES), st.floats(0, 1), min_size=2), st.sampled_from(NODES))
def test_turns_follow_each_other_although_the_nodes_heard_the_coordinator_at_different_times(
    heard: dict[str, float], coordinator_node: str
) -> None:
    def is_ready(node: str, now_s: float) -> bool:
        others = {name: now_s - heard_s for name, heard_s in heard.items() if name != node}
        return decide_takeover(
            SilenceView(node, now_s - heard[node], hear(others), coordinator_node, LIMITS)
        ).now

    times = [number / 20 for number in range(20 * 7)]
    begun = sorted(min(now_s for now_s in times if is_ready(node, now_s)) for node in heard)
    assert all(after - before >= LIMITS.turn_s - 0.06 for before, after in pairwise(begun))


@given(st.tuples(*(4 * [st.floats(0, 40)])), st.booleans(), st.integers(0, 4))
def test_with_half_the_limit_a_node_decides_the_same_in_half_the_time(
    times_s: tuple[float, float, float, float], left_out: bool, workers: int
) -> None:
    silent_s, unseen_s, renewed_s, heard_s = times_s
    view = SilenceView(
        "b",
        silent_s,
        hear({"c": heard_s, "d": None}, workers=1),
        "",
        LIMITS,
        left_out=left_out,
        unseen_s=unseen_s,
        renewed_s=renewed_s,
        workers=workers,
        total=4,
    )
    short = replace(
        view,
        silent_s=silent_s / 2,
        answers=hear({"c": heard_s / 2, "d": None}, workers=1),
        limits=SilenceLimits(LIMITS.limit_s / 2),
        unseen_s=unseen_s / 2,
        renewed_s=renewed_s / 2,
    )
    assert decide_takeover(short).now == decide_takeover(view).now
