"""Seeds that once broke a promise, each with what had gone wrong."""

import pytest

from elastane.simulator.faults import plan
from elastane.simulator.history import History

FOUND = {
    (1628, None): "a new coordinator rebuilt a generation with a worker that had already left it",
    (1846, 1): "the coordinator died with its last words; workers started meanwhile waited for ever",
}


@pytest.mark.parametrize(("seed", "copies"), FOUND, ids=str)
def test_a_seed_that_once_broke_a_promise_keeps_it(seed, copies):
    verdict = History(plan(seed, copies)).play()
    assert verdict.steps > 0
