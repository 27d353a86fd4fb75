"""A run survives several deaths as long as one worker has each part of the state."""

import itertools
import signal

import pytest

from .stage import kill

pytestmark = pytest.mark.processes


def format_faults(*texts):
    return [f"--fault={text}" for text in texts]


@pytest.mark.parametrize(
    "moments",
    [("in-backward", "in-backward"), ("after-one-vote", "before-apply"), ("before-vote", "before-vote")],
)
def test_two_workers_may_die_in_the_same_step(stage, assert_equals_reference, moments):
    first, second = moments
    ended = stage.play(*format_faults(f"1:5:{first}", f"2:5:{second}"), start=4)
    assert_equals_reference(ended)
    assert sorted(ended.find_subjects("worker.died")) == ["worker 1", "worker 2"]


@pytest.mark.parametrize("moment", ["in-backward", "after-first-summed"])
def test_all_workers_but_one_may_die_in_the_same_step(stage, assert_equals_reference, moment):
    ended = stage.play(*format_faults(*(f"{number}:5:{moment}" for number in (0, 1, 3))), start=4)
    assert_equals_reference(ended)
    assert len(ended.find_subjects("worker.died")) == 3
    shares = ended.get_shares(5)
    # The sums of the last one to die may be complete, if worker 2 has its own: then they count.
    assert shares.keys() == {2} or (moment == "after-first-summed" and 2 in shares and len(shares) == 2)


def test_a_worker_may_die_while_the_survivors_finish_the_step_of_another(stage, assert_equals_reference):
    """The second fault is in the same step, in the generation that follows the first death."""
    ended = stage.play(*format_faults("1:5:before-compute", "2:5:before-vote"), start=4, copies=3)
    assert_equals_reference(ended)
    assert sorted(ended.find_subjects("worker.died")) == ["worker 1", "worker 2"]
    assert ended.get_generation(5) >= 3


def test_workers_may_die_one_after_the_other(stage, assert_equals_reference):
    ended = stage.play(*format_faults("0:3:before-apply", "1:5:in-backward", "2:6:before-vote"), start=4)
    assert_equals_reference(ended)
    assert len(ended.find_subjects("worker.died")) == 3


def kill_together(*numbers):
    """Return a disturbance that kills these workers at the same moment, after the fourth step."""

    async def disturb(run):
        answer = await run.wait_for_step(4)
        # A stopped worker hands nothing over between its neighbour's death and its own.
        for sent, number in itertools.product((signal.SIGSTOP, signal.SIGKILL), numbers):
            kill(answer, "worker", number, sent)
        run.stop_pacing()

    return disturb


@pytest.mark.parametrize("copies", [None, 3])
def test_two_workers_may_be_killed_at_the_same_moment(stage, assert_equals_reference, copies):
    assert_equals_reference(stage.play("--paced-from=5", disturb=kill_together(1, 2), start=4, copies=copies))


@pytest.mark.parametrize(
    ("numbers", "options"),
    [((1, 2), {"start": 3, "copies": 2}), ((0, 1), {"start": 2})],
    ids=["sharded", "whole"],
)
def test_a_run_ends_with_an_error_when_every_copy_of_the_state_is_lost(stage, numbers, options):
    ended = stage.play("--paced-from=5", disturb=kill_together(*numbers), **options)
    assert ended.outcome.code == 1
    assert "every copy died" in ended.outcome.why or "all copies" in ended.outcome.traceback, ended.describe()
    assert len(ended.run.ledger) == 4
    assert ended.verdict.problems == ()


def test_a_lone_worker_that_dies_before_the_first_commit_is_replaced(stage, assert_equals_reference):
    ended = stage.play(*format_faults("0:1:in-backward"), start=1)
    assert_equals_reference(ended)
    assert ended.get_shares(1).keys() == {1}
