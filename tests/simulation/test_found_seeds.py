"""Seeds that broke a promise while the protocol was made, each with what had gone wrong."""

import pytest

from tests.simulator.faults import draw_plan, draw_storm
from tests.simulator.history import History

USUAL = {
    (13, None): "the first member died before its state was passed on; nothing was lost, but the run gave up",
    (13, 1): "the same with sharded state",
    (5, 2): "state that came while a step was being applied was freed with what that step no longer held",
    (162, 3): "a leaver was not named in the generation it left with; nobody fetched what only it held",
}

STORMS = {
    (1, None): "a joiner did not know the step and left its digests out of its vote",
    (1, 2): "a worker without state claimed to work in a planned generation before that had begun",
    (2, 3): "with fewer virtual ranks than workers nobody had claims, and whole sums were not passed on",
    (3, 1): "a worker called itself complete before its new generation had begun; leavers were sent home",
    (5, None): "another change was planned while leavers were still handing over",
    (7, 1): "a member that knew state to be lost trained on",
    (17, 3): "a newcomer that was set aside was sent home before it had told its status",
    (24, 1): "who was a round late counted with blocks it was about to drop",
    (25, 2): "a joiner without state was regrouped with others that were in an evaluation",
    (145, 2): "as 17, with a coordinator that had just taken over",
    (198, None): "a vote heard while catching up was forgotten again",
    (
        67,
        1,
    ): "who once gave a whole sum it had kept went on summing a block it does not hold, and voted too soon",
    (230, None): "an evaluation between two steps made all forget the generation they had agreed on",
    (
        1115,
        None,
    ): "the rest was waited for as if it had optimizer state; the only whole member never was",
    (1623, 2): "a step was dealt in the old generation, not in the agreed one; a rank was summed twice",
    (1758, None): "a worker had left before it was named in a newer generation, which then waited for it",
    (
        70287,
        None,
    ): "a late report made a new coordinator take a leave that was told for a join that had failed",
    (
        72078,
        None,
    ): "whole members that had not begun were taken for empty, and a change was planned beside a death",
    (73147, 1): "the last word of a worker that had been killed meanwhile was told as a second end",
}


@pytest.mark.parametrize(("seed", "copies"), USUAL)
def test_a_seed_that_once_broke_a_promise_keeps_it(seed, copies):
    assert History(draw_plan(seed, copies)).play().generations > 0


@pytest.mark.parametrize(("seed", "copies"), STORMS)
def test_a_storm_that_once_broke_a_promise_does_not_any_more(seed, copies):
    assert History(draw_storm(seed, copies)).play().generations > 0
