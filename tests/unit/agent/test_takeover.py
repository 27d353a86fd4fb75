"""Which node starts the next term, and when."""

from hypothesis import given
from hypothesis import strategies as st

from elastane.agent.takeover import SILENCE_S, TURN_S, SilenceView, decide_takeover

NODES = ("", "a", "b", "c")


def decide(node: str, silent_s: float, **answers: float | None) -> bool:
    return decide_takeover(SilenceView(node, silent_s, answers, coordinator_node="")).now


def test_a_coordinator_that_another_node_hears_keeps_its_term() -> None:
    assert not decide("b", 60.0, a=0.2, c=9.0)
    assert decide("b", 60.0, a=9.0, c=9.0)


def test_nodes_take_turns_by_name_and_dead_ones_have_none() -> None:
    assert decide("a", SILENCE_S, b=SILENCE_S)
    assert not decide("b", SILENCE_S, a=SILENCE_S)
    assert decide("b", SILENCE_S + TURN_S, a=SILENCE_S)
    assert decide("b", SILENCE_S, a=None)


def test_the_node_of_the_silent_coordinator_goes_first_if_its_agent_lives() -> None:
    view = SilenceView("z", SILENCE_S, {"a": SILENCE_S}, coordinator_node="z")
    assert decide_takeover(view).now


@given(st.sets(st.sampled_from(NODES), min_size=1), st.floats(0, 10), st.sampled_from(NODES))
def test_among_nodes_that_all_answer_one_has_the_first_turn(
    nodes: set[str], silent_s: float, coordinator_node: str
) -> None:
    ready = [
        node
        for node in nodes
        if decide_takeover(
            SilenceView(node, silent_s, dict.fromkeys(nodes - {node}, silent_s), coordinator_node)
        ).now
    ]
    turns = 0 if silent_s < SILENCE_S else 1 + int((silent_s - SILENCE_S) / TURN_S)
    assert len(ready) == min(turns, len(nodes))
