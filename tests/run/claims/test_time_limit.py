"""The time limit of calls that may hang."""

import threading

import pytest

from elastane.run.machines.claims.claim_list import NotAnswered, TimeLimit


def test_results_and_errors_come_back():
    limit = TimeLimit()
    assert limit.call(lambda: 3, 60.0) == 3
    with pytest.raises(ZeroDivisionError):
        limit.call(lambda: 1 // 0, 60.0)
    # An error of the function is not mistaken for the limit.
    with pytest.raises(TimeoutError, match="mine"):
        limit.call(lambda: (_ for _ in ()).throw(TimeoutError("mine")), 60.0)
    assert limit.call(lambda: 4, 60.0) == 4


def test_a_call_that_hangs_is_left_and_the_next_one_waits_for_its_end():
    limit, back, calls = TimeLimit(), threading.Event(), []
    with pytest.raises(NotAnswered):
        limit.call(back.wait, 0.1)
    with pytest.raises(NotAnswered):
        limit.call(lambda: calls.append(1), 0.1)
    back.set()
    assert limit.call(lambda: calls.append(2), 60.0) is None
    # The call that was refused was never made.
    assert calls == [2]
