"""Seeds that broke a promise during the development of the protocol, each with the mistake."""

import pytest

from tests.run.simulator.faults import add_checkpoints, draw_plan, draw_storm
from tests.run.simulator.history import History
from tests.run.simulator.network_plans import draw_network

USUAL = {
    (
        13,
        None,
    ): "the first member died before it had passed on its state; the run gave up, but had lost nothing",
    (13, 1): "the same with sharded state",
    (5, 2): "state that arrived during the application of a step was freed with the state of that step",
    (162, 3): "a generation did not name one of its leavers, so no member fetched what only the leaver held",
}

STORMS = {
    (1, None): "a joiner did not know the step, so its vote lacked its digests",
    (1, 2): "a worker without state reported a planned generation before that had begun",
    (2, 3): "with fewer virtual ranks than workers no worker was assigned any, and whole sums were stuck",
    (3, 1): "a worker reported complete state before its new generation had begun; leavers were dismissed",
    (5, None): "another change was planned while leavers still handed over state",
    (7, 1): "a member that knew of lost state continued to train",
    (17, 3): "a newcomer that was set aside was dismissed before it had sent its status",
    (24, 1): "a worker that was a round late counted with blocks that it was about to drop",
    (25, 2): "a joiner without state was regrouped with others that were in an evaluation",
    (145, 2): "the same as 17, with a coordinator that had just taken over",
    (198, None): "a vote that arrived while the worker caught up was forgotten",
    (
        67,
        1,
    ): "a worker that had passed on a whole sum summed a block that it does not hold, and voted too early",
    (230, None): "an evaluation between two steps made all members forget the agreed generation",
    (1115, None): "members waited for optimizer state of the rest, so the only whole member never counted",
    (
        1623,
        2,
    ): "a step was assigned in the old generation instead of the agreed one; one rank was summed twice",
    (1758, None): "a worker had left before a newer generation named it, so the generation waited for it",
    (70287, None): "after a late report a new coordinator took a recorded leave for a failed join",
    (
        72078,
        None,
    ): "whole members that had not begun counted as empty, and a change was planned beside a death",
    (73147, 1): "the last message of a killed worker was recorded as a second end",
}

NETWORKS = {
    (1388, 2): "after the last step only a worker beyond its share had a block, and no checkpoint got it",
    (
        410017,
        2,
    ): "only a worker that storage refused had a block of the last state, and was still passing it on",
    (2178, None): "the check counted a worker as a member that its generation names among the leavers",
}


@pytest.mark.parametrize(("seed", "copies"), USUAL)
def test_a_history_that_once_broke_a_promise_keeps_it(seed, copies):
    assert History(draw_plan(seed, copies)).play().generations > 0


@pytest.mark.parametrize(("seed", "copies"), STORMS)
def test_a_storm_that_once_broke_a_promise_keeps_it(seed, copies):
    assert History(draw_storm(seed, copies)).play().generations > 0


@pytest.mark.parametrize(("seed", "copies"), NETWORKS)
def test_a_history_with_network_faults_that_once_broke_a_promise_keeps_it(seed, copies):
    assert History(add_checkpoints(draw_network(seed, copies))).play().generations > 0
