"""How often the loop looks."""

from elastane.controller.loop import LONGEST_REST_S, LOOK_S, compute_pause_s


def test_it_looks_once_a_second() -> None:
    assert compute_pause_s(took_s=0.02, busy_s=0.01) == LOOK_S - 0.02


def test_turns_that_are_dear_become_rarer() -> None:
    assert compute_pause_s(took_s=0.3, busy_s=0.3) == 10 * 0.3 - 0.3


def test_a_turn_that_had_to_wait_for_others_is_followed_by_the_next() -> None:
    """On a machine that was busy with others one turn of 16 s was once followed by a rest of 150 s."""
    assert compute_pause_s(took_s=16.0, busy_s=0.3) == 0.0


def test_no_turn_is_so_dear_that_nobody_looks_any_more() -> None:
    assert compute_pause_s(took_s=20.0, busy_s=20.0) == LONGEST_REST_S
