"""A worker is killed at an exact moment of a step; the others compute only its lost share again."""

import asyncio

import pytest

from .ways import OPPOSITE_WAYS, pair_with_ways

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


def play_with_a_death(stage, moment, way, *, workers=3, number=1):
    ended = stage.play(f"--fault={number}:{STEP}:{moment}", start=workers, **way)
    # Peers notice the death before the agent does; the event still names the signal.
    deaths = [(event.who, event.why) for event in ended.find_events("worker.died")]
    assert deaths == [(f"worker {number}", "killed by SIGKILL")], ended.describe()
    return ended


def assert_survivors_computed_nothing_twice(ended, dead):
    """Assert that the survivors of ``STEP`` computed each virtual rank once, with those before the death."""
    survivors = set(ended.get_shares(STEP - 1)) - {dead}
    ranks = [
        rank for worker in survivors for step, rank in ended.assignments[worker].elements() if step == STEP
    ]
    assert len(ranks) == len(set(ranks))


@pytest.mark.parametrize(("moment", "way"), pair_with_ways(BEFORE_THE_COMMIT, OPPOSITE_WAYS))
def test_survivors_compute_the_share_of_a_worker_that_dies_before_it_votes(
    stage, assert_equals_reference, moment, way
):
    ended = play_with_a_death(stage, moment, way)
    assert_equals_reference(ended)
    assert_survivors_computed_nothing_twice(ended, dead=1)
    assert set(ended.get_shares(STEP)) == {0, 2}
    assert ended.count_computed(STEP, by=[0, 2]) == 8
    assert ended.get_generation(STEP) == ended.get_generation(STEP - 1) + 1


@pytest.mark.parametrize("way", OPPOSITE_WAYS)
def test_survivors_agree_on_a_step_for_which_only_one_received_the_vote_of_the_dead(
    stage, assert_equals_reference, way
):
    ended = play_with_a_death(stage, "after-one-vote", way)
    assert_equals_reference(ended)
    assert_survivors_computed_nothing_twice(ended, dead=1)


@pytest.mark.parametrize(("moment", "way"), pair_with_ways(AFTER_THE_COMMIT, OPPOSITE_WAYS))
def test_no_share_is_computed_again_once_a_survivor_has_every_vote(
    stage, assert_equals_reference, moment, way
):
    ended = play_with_a_death(stage, moment, way)
    assert_equals_reference(ended)
    assert ended.get_shares(STEP) == ended.get_shares(STEP - 1)
    assert ended.count_computed(STEP, by=[0, 2]) == 8 - len(ended.get_shares(STEP)[1])


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_state_that_arrives_while_the_step_is_being_applied_is_kept(
    stage, assert_equals_reference, transport
):
    async def disturb(run):
        await run.wait_for_event("worker.died", "worker 1")
        # Worker 0 sends worker 2 the state that the dead worker kept.
        await asyncio.sleep(SENT_S)  # not a wait: the state arrives meanwhile, or the test is weaker
        run.touch("apply")

    late, fault = f"--apply-late=2:{STEP}", f"--fault=1:{STEP}:after-one-vote-that-counted"
    assert_equals_reference(stage.play(late, fault, disturb=disturb, start=3, copies=2, transport=transport))


@pytest.mark.parametrize(
    ("moment", "transport"),
    [
        ("before-publish", "shared"),
        ("after-one-published", "tcp"),
        pytest.param("before-publish", "tcp", marks=pytest.mark.long),
        pytest.param("after-one-published", "shared", marks=pytest.mark.long),
    ],
)
def test_values_that_a_dead_owner_had_not_published_come_from_its_backup(
    stage, assert_equals_reference, moment, transport
):
    ended = play_with_a_death(stage, moment, {"copies": 2, "transport": transport}, workers=4)
    assert_equals_reference(ended)
    assert ended.get_shares(STEP) == ended.get_shares(STEP - 1)
    assert ended.count_computed(STEP, by=[0, 2, 3]) == 8 - len(ended.get_shares(STEP)[1])


@pytest.mark.parametrize(
    ("moment", "way"), pair_with_ways(["in-backward", "before-vote", "before-apply"], OPPOSITE_WAYS)
)
def test_worker_0_may_die_as_any_other(stage, assert_equals_reference, moment, way):
    ended = play_with_a_death(stage, moment, way, number=0)
    assert_equals_reference(ended)
    assert_survivors_computed_nothing_twice(ended, dead=0)


@pytest.mark.parametrize("way", OPPOSITE_WAYS)
def test_a_worker_may_die_in_the_first_step(stage, assert_equals_reference, way):
    ended = stage.play("--fault=0:1:before-vote", start=3, **way)
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == ["worker 0"]


@pytest.mark.parametrize("way", OPPOSITE_WAYS)
def test_a_worker_may_die_in_the_last_step(stage, assert_equals_reference, way):
    ended = stage.play("--fault=1:30:before-apply", start=3, **way)
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == ["worker 1"]


def test_a_worker_may_die_before_it_writes_the_model(stage, assert_equals_reference):
    ended = stage.play("--fault=0:0:before-writing-model", start=2)
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == ["worker 0"]
