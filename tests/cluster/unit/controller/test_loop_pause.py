"""The pause between two observations of the loop."""

from elastane.cluster.controller.loop import LONGEST_REST_S, LOOK_S, compute_pause_s


def test_jobs_are_observed_once_a_second() -> None:
    assert compute_pause_s(took_s=0.02, busy_s=0.01) == LOOK_S - 0.02


def test_expensive_observations_become_rarer() -> None:
    assert compute_pause_s(took_s=0.3, busy_s=0.3) == 10 * 0.3 - 0.3


def test_an_observation_that_only_waited_does_not_become_rarer() -> None:
    """On a busy machine, an observation of 16 s was once followed by a pause of 150 s."""
    assert compute_pause_s(took_s=16.0, busy_s=0.3) == 0.0


def test_the_pause_between_observations_has_a_maximum() -> None:
    assert compute_pause_s(took_s=20.0, busy_s=20.0) == LONGEST_REST_S
