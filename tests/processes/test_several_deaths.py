"""One survivor that has the state is enough; with none left the run says so."""

import os
import signal

import pytest

from .stage import kill, pid_of

pytestmark = pytest.mark.processes


def faults(*texts):
    return [f"--fault={text}" for text in texts]


@pytest.mark.parametrize(
    "moments",
    [("in-backward", "in-backward"), ("after-one-vote", "before-apply"), ("before-vote", "before-vote")],
)
def test_two_die_in_the_same_step(stage, assert_undisturbed, moments):
    first, second = moments
    ended = stage.play(*faults(f"1:5:{first}", f"2:5:{second}"), start=4)
    assert_undisturbed(ended)
    assert sorted(ended.who("worker.died")) == ["worker 1", "worker 2"]


@pytest.mark.parametrize("moment", ["in-backward", "after-first-summed"])
def test_all_but_one_die_in_the_same_step(stage, assert_undisturbed, moment):
    ended = stage.play(*faults(*(f"{number}:5:{moment}" for number in (0, 1, 3))), start=4)
    assert_undisturbed(ended)
    assert len(ended.who("worker.died")) == 3
    assert ended.shares(5).keys() == {2}


def test_the_second_dies_while_the_step_of_the_first_is_finished(stage, assert_undisturbed):
    """Its fault is in the same step, and later: in the generation that follows the first death."""
    ended = stage.play(*faults("1:5:before-compute", "2:5:before-vote"), start=4, copies=3)
    assert_undisturbed(ended)
    assert sorted(ended.who("worker.died")) == ["worker 1", "worker 2"]
    assert ended.generation(5) >= 3


def test_one_after_the_other(stage, assert_undisturbed):
    """Each dead worker is replaced, and the replacement dies as well."""
    ended = stage.play(*faults("0:3:before-apply", "1:6:in-backward", "2:9:before-vote"), start=3)
    assert_undisturbed(ended)
    assert len(ended.who("worker.died")) == 3


@pytest.mark.parametrize("copies", [None, 2])
def test_two_killed_from_outside_at_the_same_moment(stage, assert_undisturbed, copies):
    async def story(running):
        answer = await running.until_step(4)
        pids = [pid_of(answer, "worker", number) for number in ((1, 2) if copies is None else (1,))]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        running.go()

    assert_undisturbed(stage.play("--paced-from=5", story=story, start=4, copies=copies))


def test_with_every_copy_of_a_block_the_run_is_over_and_says_so(stage):
    ended = stage.play(*faults("1:5:in-backward", "2:5:in-backward"), start=3, copies=2)
    assert ended.over.code == 1
    assert "copies" in ended.over.why
    assert len(ended.run.ledger) == 4
    assert ended.verdict.problems == ()


def test_with_every_worker_the_run_is_over_and_says_so(stage):
    ended = stage.play(*faults("0:5:in-backward", "1:5:in-backward"), start=2)
    assert ended.over.code == 1
    assert "no living worker holds the state after step 4" in ended.over.why
    assert len(ended.run.ledger) == 4


def test_every_worker_before_the_first_commit_costs_only_time(stage, assert_undisturbed):
    async def story(running):
        answer = await running.until(lambda answer: answer.state == "training")
        kill(answer, "worker", 0)
        running.go()

    assert_undisturbed(stage.play("--paced-from=1", story=story, start=1))
