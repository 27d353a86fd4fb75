"""A worker is killed at an exact moment: what it left of that step is computed again, and nothing else."""

import asyncio

import pytest

pytestmark = pytest.mark.processes

STEP = 5
SENT_S = 1.0
BEFORE_THE_COMMIT = [
    "before-compute",
    "in-backward",
    "before-first-ready",
    "after-first-ready",
    "after-first-sum",
    "after-first-summed",
    "before-vote",
]
AFTER_THE_COMMIT = ["after-one-vote-that-counted", "after-both-votes", "before-apply"]
WAYS = [
    pytest.param({"copies": None, "transport": "shared"}, id="whole-shared"),
    pytest.param({"copies": 2, "transport": "tcp"}, id="sharded-tcp"),
]


def with_a_death(stage, moment, way, *, workers=3, number=1):
    ended = stage.play(f"--fault={number}:{STEP}:{moment}", start=workers, **way)
    # Its peers notice before the agent does, and still the record says how it ended.
    told = [(event.who, event.why) for event in ended.events("worker.died")]
    assert told == [(f"worker {number}", "killed by SIGKILL")], ended.story()
    return ended


def assert_survivors_computed_nothing_twice(ended, dead):
    """Neither their own virtual ranks nor one that another of them has."""
    survivors = set(ended.shares(STEP - 1)) - {dead}
    ranks = [rank for who in survivors for step, rank in ended.dealt[who].elements() if step == STEP]
    assert len(ranks) == len(set(ranks))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", BEFORE_THE_COMMIT)
def test_before_the_votes_its_share_is_computed_by_the_others(stage, assert_undisturbed, moment, way):
    ended = with_a_death(stage, moment, way)
    assert_undisturbed(ended)
    assert_survivors_computed_nothing_twice(ended, dead=1)
    assert set(ended.shares(STEP)) == {0, 2}
    assert ended.computed(STEP, by=[0, 2]) == 8
    assert ended.generation(STEP) == ended.generation(STEP - 1) + 1


@pytest.mark.parametrize("way", WAYS)
def test_with_one_of_its_votes_sent_the_survivors_agree_whether_the_step_holds(
    stage, assert_undisturbed, way
):
    ended = with_a_death(stage, "after-one-vote", way)
    assert_undisturbed(ended)
    assert_survivors_computed_nothing_twice(ended, dead=1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", AFTER_THE_COMMIT)
def test_once_a_survivor_has_every_vote_nothing_is_computed_again(stage, assert_undisturbed, moment, way):
    ended = with_a_death(stage, moment, way)
    assert_undisturbed(ended)
    assert ended.shares(STEP) == ended.shares(STEP - 1)
    assert ended.computed(STEP, by=[0, 2]) == 8 - len(ended.shares(STEP)[1])


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_state_that_comes_while_the_step_is_being_applied_is_kept(stage, assert_undisturbed, transport):
    async def story(running):
        await running.until_event("worker.died", "worker 1")
        # By now worker 0 has sent worker 2 what that is to keep instead of the dead one.
        await asyncio.sleep(SENT_S)
        running.open("apply")

    late, fault = f"--apply-late=2:{STEP}", f"--fault=1:{STEP}:after-one-vote-that-counted"
    assert_undisturbed(stage.play(late, fault, story=story, start=3, copies=2, transport=transport))


@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.parametrize("moment", ["before-publish", "after-one-published"])
def test_values_it_had_not_passed_on_come_from_its_backup(stage, assert_undisturbed, moment, transport):
    ended = with_a_death(stage, moment, {"copies": 2, "transport": transport}, workers=4)
    assert_undisturbed(ended)
    assert ended.shares(STEP) == ended.shares(STEP - 1)
    assert ended.computed(STEP, by=[0, 2, 3]) == 8 - len(ended.shares(STEP)[1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", ["in-backward", "before-vote", "before-apply"])
def test_the_first_worker_is_no_more_than_any_other(stage, assert_undisturbed, moment, way):
    ended = with_a_death(stage, moment, way, number=0)
    assert_undisturbed(ended)
    assert_survivors_computed_nothing_twice(ended, dead=0)


@pytest.mark.parametrize("way", WAYS)
def test_in_the_very_first_step(stage, assert_undisturbed, way):
    ended = stage.play("--fault=0:1:before-vote", start=3, **way)
    assert_undisturbed(ended)
    assert ended.who("worker.died") == ["worker 0"]


@pytest.mark.parametrize("way", WAYS)
def test_in_the_very_last_step(stage, assert_undisturbed, way):
    ended = stage.play("--fault=1:30:before-apply", start=3, **way)
    assert_undisturbed(ended)
    assert ended.who("worker.died") == ["worker 1"]


def test_while_it_writes_the_model(stage, assert_undisturbed):
    ended = stage.play("--fault=0:0:before-writing-model", start=2)
    assert_undisturbed(ended)
    assert ended.who("worker.died") == ["worker 0"]
