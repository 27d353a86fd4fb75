"""Seeds that broke a promise while the protocol was made, each with what had gone wrong."""

import pytest

from elastane.simulator.faults import storm
from elastane.simulator.history import History

FOUND = {
    (25, 2): "a joiner without state was named in a regrouping while the others were in an evaluation",
    (17, 3): "a newcomer set aside by a regrouping was sent home as surplus before it had told its status",
    (145, 2): "the same, with a coordinator that had just taken over",
    (24, 1): "who was a round late counted with blocks it was about to drop, not only with those it keeps",
    (2, 3): "with fewer virtual ranks than workers nobody had claims, and whole sums were not passed on",
    (
        13,
        None,
    ): "the first member died before it had given its state; the run gave up though nothing was lost",
    (13, 1): "the same with sharded state",
    (1, None): "a joiner did not know the step and left its digests out of its vote",
    (7, 1): "a member that knew state to be lost trained on",
    (1, 2): "a worker without state claimed to work in a planned generation before that had begun",
    (3, 1): "a worker called itself complete between a proposal and its beginning; leavers were sent home",
    (5, None): "another change was planned while leavers were still handing over",
    (230, None): "an evaluation between two steps made all forget the generation they had agreed on",
    (162, 3): "a leaver was not named in the generation it left with, and nobody fetched what only it held",
}


@pytest.mark.parametrize(("seed", "copies"), FOUND, ids=str)
def test_a_seed_that_once_broke_a_promise_keeps_it(seed, copies):
    assert History(storm(seed, copies)).play().generations > 0
