"""A worker dies with a thread of Elastane, and survives the death of a thread of the script."""

import pytest

pytestmark = pytest.mark.processes


def test_a_worker_is_replaced_when_a_thread_of_elastane_dies_in_it(stage, assert_equals_reference):
    ended = stage.play("--fault=1:5:a-thread-of-ours-dies", start=3)
    assert_equals_reference(ended)
    [(worker, why)] = [(event.who, event.why) for event in ended.find_events("worker.died")]
    assert (worker, why) == ("worker 1", "a thread of Elastane died in it, see logs/worker-1.log")
    assert "ZeroDivisionError: in a thread" in ended.read_log("worker-1")


def test_a_worker_survives_the_death_of_a_thread_of_the_script(stage, assert_equals_reference):
    ended = stage.play("--fault=1:5:a-thread-of-the-script-dies", start=2)
    assert_equals_reference(ended)
    assert ended.find_events("worker.died") == []
    assert "ZeroDivisionError: in a thread" in ended.read_log("worker-1")
