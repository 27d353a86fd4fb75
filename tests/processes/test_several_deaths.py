"""One survivor that has the state is enough; with none left the run says so."""

import pytest

from .stage import kill

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
    ended = stage.play(*faults("0:3:before-apply", "1:5:in-backward", "2:6:before-vote"), start=4)
    assert_undisturbed(ended)
    assert len(ended.who("worker.died")) == 3


def killing(*numbers):
    """These workers, at the same moment, after the fourth step."""

    async def story(running):
        answer = await running.until_step(4)
        for number in numbers:
            kill(answer, "worker", number)
        running.go()

    return story


@pytest.mark.parametrize("copies", [None, 3])
def test_two_killed_from_outside_at_the_same_moment(stage, assert_undisturbed, copies):
    assert_undisturbed(stage.play("--paced-from=5", story=killing(1, 2), start=4, copies=copies))


@pytest.mark.parametrize(
    ("numbers", "wishes"),
    [((1, 2), {"start": 3, "copies": 2}), ((0, 1), {"start": 2})],
    ids=["sharded", "whole"],
)
def test_with_the_last_copy_the_run_is_over_and_says_so(stage, numbers, wishes):
    ended = stage.play("--paced-from=5", story=killing(*numbers), **wishes)
    assert ended.over.code == 1
    assert "every copy died" in ended.over.why or "all copies" in ended.over.traceback, ended.story()
    assert len(ended.run.ledger) == 4
    assert ended.verdict.problems == ()


def test_a_lone_worker_that_dies_before_the_first_commit_costs_only_time(stage, assert_undisturbed):
    ended = stage.play(*faults("0:1:in-backward"), start=1)
    assert_undisturbed(ended)
    assert ended.shares(1).keys() == {1}
