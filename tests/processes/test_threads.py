"""A thread that dies in a worker: one of ours takes the worker with it, one of the script's takes nothing."""

import pytest

pytestmark = pytest.mark.processes


def test_a_worker_whose_reports_cannot_go_on_is_replaced(stage, assert_undisturbed):
    ended = stage.play("--fault=1:5:a-thread-of-ours-dies", start=3)
    assert_undisturbed(ended)
    ((who, why),) = [(event.who, event.why) for event in ended.events("worker.died")]
    assert (who, why) == ("worker 1", "a thread of Elastane died in it, see logs/worker-1.log")
    assert "ZeroDivisionError: in a thread" in ended.log("worker-1")


def test_a_thread_of_the_script_may_die_as_it_may_under_plain_python(stage, assert_undisturbed):
    ended = stage.play("--fault=1:5:a-thread-of-the-script-dies", start=2)
    assert_undisturbed(ended)
    assert ended.events("worker.died") == []
    assert "ZeroDivisionError: in a thread" in ended.log("worker-1")
