"""Which node starts the next term, and when."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elastane.agent.takeover import (
    TURN_S,
    UNSEEN_S,
    CoordinatorHeard,
    SilenceView,
    decide_takeover,
    is_left_out,
)
from elastane.api.membership import MINORITY_S, SILENCE_S
from elastane.claims.records import GenerationClaim

NODES = ("", "a", "b", "c")


def decide(node: str, silent_s: float, **answers: float | None) -> bool:
    return decide_takeover(SilenceView(node, silent_s, hear(answers), coordinator_node="")).now


def hear(answers: dict[str, float | None], workers: int = 0) -> dict[str, CoordinatorHeard | None]:
    """Return the answers of nodes that heard the coordinator so many seconds ago."""
    return {name: None if s is None else CoordinatorHeard(s, workers) for name, s in answers.items()}


def test_a_coordinator_that_another_node_hears_keeps_its_term() -> None:
    assert not decide("b", 60.0, a=0.2, c=9.0)
    assert decide("b", 60.0, a=9.0, c=9.0)


def test_nodes_take_turns_by_name_and_dead_ones_have_none() -> None:
    first, second = SILENCE_S + TURN_S, SILENCE_S + 2 * TURN_S
    assert decide("a", first, b=SILENCE_S)
    assert not decide("b", first, a=SILENCE_S)
    assert decide("b", second, a=SILENCE_S)
    assert decide("b", first, a=None)


def test_nodes_with_less_than_half_of_the_workers_wait_for_the_others() -> None:
    view = SilenceView("b", SILENCE_S + TURN_S, {"c": None}, "", workers=1, total=3)
    assert not decide_takeover(view).now
    assert "1 of 3 workers" in decide_takeover(view).why
    assert decide_takeover(replace(view, silent_s=SILENCE_S + TURN_S + MINORITY_S)).now
    assert decide_takeover(replace(view, total=2)).now
    assert decide_takeover(replace(view, answers=hear({"c": SILENCE_S}, workers=1))).now


def test_nodes_without_most_workers_leave_a_coordinator_in_charge_that_renews_its_sign() -> None:
    view = SilenceView("b", 10.0, {"c": None}, "", renewed_s=1.0, workers=2, total=4)
    assert not decide_takeover(view).now
    assert "at work" in decide_takeover(view).why
    assert decide_takeover(replace(view, workers=3)).now
    assert decide_takeover(replace(view, renewed_s=SILENCE_S)).now
    # Perhaps it hears no worker itself.
    assert decide_takeover(replace(view, silent_s=UNSEEN_S)).now


def test_the_node_of_the_silent_coordinator_goes_first() -> None:
    view = SilenceView("z", SILENCE_S, hear({"a": SILENCE_S}), coordinator_node="z")
    assert decide_takeover(view).now
    assert not decide("a", SILENCE_S)


def test_a_node_without_an_order_of_the_run_takes_nothing_over() -> None:
    view = SilenceView("b", 50.0, {"": None}, coordinator_node="b", is_new=True)
    assert not decide_takeover(view).now
    assert decide_takeover(replace(view, is_new=False)).now


def test_a_node_that_was_left_out_takes_charge_only_if_nothing_is_left_of_the_run() -> None:
    view = SilenceView("b", 50.0, {"": None}, "", left_out=True, unseen_s=UNSEEN_S - 0.1)
    assert not decide_takeover(view).now
    assert decide_takeover(replace(view, unseen_s=UNSEEN_S)).now
    assert not decide_takeover(replace(view, unseen_s=UNSEEN_S, answers=hear({"": 1.0}))).now


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
            SilenceView(node, silent_s, hear(dict.fromkeys(nodes - {node}, silent_s)), coordinator_node)
        ).now
    ]
    turns = 0 if silent_s < SILENCE_S else 1 + int((silent_s - SILENCE_S) / TURN_S)
    silent_first = coordinator_node not in nodes
    assert len(ready) == min(max(0, turns - silent_first), len(nodes))
