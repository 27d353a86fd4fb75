"""Workers come and go at commits; those who stay do not wait for them and compute nothing twice."""

import pytest

from elastane.api.control import AskDrain

from .stage import member_states, state_of

pytestmark = pytest.mark.processes

WAYS = [
    pytest.param({"copies": None, "transport": "shared"}, id="whole-shared"),
    pytest.param({"copies": None, "transport": "tcp"}, id="whole-tcp"),
    pytest.param({"copies": 2, "transport": "shared"}, id="sharded-shared"),
    pytest.param({"copies": 2, "transport": "tcp"}, id="sharded-tcp"),
]


def assert_nothing_computed_twice(ended):
    # Those that the run begins with compute their first microbatch twice before.
    rehearsals = sum(2 if worker < ended.run.record.spec.start else 1 for worker in ended.dealt)
    steps = len(ended.run.ledger)
    assert sum(sum(dealt.values()) for dealt in ended.dealt.values()) == steps * 8 + rehearsals


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_joins(stage, assert_undisturbed, way):
    async def story(running):
        await running.until_step(4)
        await running.resize(3)
        await running.until_event("worker.ready", "worker 2")
        await running.pace(lambda answer: 2 in member_states(answer))
        running.go()

    ended = stage.play("--paced-from=5", story=story, start=2, **way)
    assert_undisturbed(ended)
    assert_nothing_computed_twice(ended)
    assert sorted(ended.who("worker.joined")) == ["worker 0", "worker 1", "worker 2"]
    assert ended.shares(30).keys() == {0, 1, 2}


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_leaves(stage, assert_undisturbed, way):
    async def story(running):
        await running.until_step(4)
        answer = await running.ask(AskDrain(worker=1))
        assert answer.ok
        await running.pace(lambda answer: state_of(answer, 1) == "")
        running.go()

    ended = stage.play("--paced-from=5", story=story, start=3, **way)
    assert_undisturbed(ended)
    assert_nothing_computed_twice(ended)
    assert ended.who("worker.left")[0] == "worker 1"
    assert ended.events("worker.died") == []
    assert 1 not in ended.shares(30)


def test_one_worker_grows_to_eight_and_shrinks_to_two(stage, assert_undisturbed):
    async def story(running):
        await running.until_step(2)
        await running.resize(8)
        for joiner in range(1, 8):
            await running.until_event("worker.ready", f"worker {joiner}")
        await running.pace(lambda answer: member_states(answer) == set(range(8)))
        await running.resize(2)
        await running.pace(lambda answer: member_states(answer) == {0, 1})
        running.go()

    ended = stage.play("--paced-from=3", story=story, start=1)
    assert_undisturbed(ended)
    assert_nothing_computed_twice(ended)
    assert len(ended.shares(30)) == 2


def test_the_last_worker_but_one_leaves(stage, assert_undisturbed):
    async def story(running):
        await running.until_step(4)
        await running.resize(1)
        await running.pace(lambda answer: member_states(answer) == {0} and state_of(answer, 1) == "")
        running.go()

    ended = stage.play("--paced-from=5", story=story, start=2, copies=2)
    assert_undisturbed(ended)
    assert_nothing_computed_twice(ended)


def test_the_healthy_train_on_while_a_joiner_takes_its_time(stage, assert_undisturbed):
    async def story(running):
        await running.until_step(4)
        await running.resize(3)
        await running.until_event("worker.started", "worker 2")
        answer = await running.pace(lambda answer: answer.step >= 10)
        assert state_of(answer, 2) == "starting"
        running.open("late")
        await running.until_event("worker.ready", "worker 2")
        await running.pace(lambda answer: 2 in member_states(answer))
        running.go()

    ended = stage.play("--paced-from=5", "--late=2", story=story, start=2)
    assert_undisturbed(ended)
    assert ended.shares(10).keys() == {0, 1}
    assert ended.generation(10) == ended.generation(1)


# -- one join after the other ----------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [None, 2])
def test_a_join_is_proposed_while_the_state_of_another_is_on_its_way(stage, assert_undisturbed, copies):
    async def story(running):
        await running.until_step(4)
        await running.resize(3)
        await running.until_event("worker.ready", "worker 2")
        running.go()
        await running.resize(4)
        await running.until_event("worker.ready", "worker 3")
        running.open("load")

    ended = stage.play("--load-late=2", "--paced-from=5", "--steps=300", story=story, start=2, copies=copies)
    assert_undisturbed(ended)
    assert ended.events("worker.died") == ended.events("worker.hung") == []
    assert ended.shares(300).keys() == {0, 1, 2, 3}


# -- faults while state changes hands --------------------------------------------------------------------


async def third_joins(running):
    await running.until_step(4)
    await running.resize(3)
    await running.until_event("worker.ready", "worker 2")
    running.go()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", ["joiner-after-status", "joiner-after-fetch", "joiner-before-loading"])
def test_the_joiner_dies_on_its_way_in(stage, assert_undisturbed, moment, way):
    ended = stage.play(f"--fault=2:0:{moment}", "--paced-from=5", story=third_joins, start=2, **way)
    assert_undisturbed(ended)
    assert ended.who("worker.died") == ["worker 2"], ended.story()


@pytest.mark.parametrize("way", WAYS)
def test_the_donor_dies_with_a_request_at_hand(stage, assert_undisturbed, way):
    ended = stage.play(
        "--fault=1:0:donor-before-serving",
        "--paced-from=5",
        "--steps=60",
        story=third_joins_once_all_is_shared,
        start=2,
        **way,
    )
    assert_undisturbed(ended)
    assert ended.who("worker.died") == ["worker 1"], ended.story()


async def third_joins_once_all_is_shared(running):
    """Both members could give everything, so one may die."""
    await running.until_step(4)
    await running.pace(lambda answer: all(row.blocks for row in answer.processes if row.role == "worker"))
    await running.resize(3)
    await running.until_event("worker.ready", "worker 2")
    running.go()


@pytest.mark.parametrize("copies", [None, 2])
def test_a_member_dies_while_another_joins(stage, assert_undisturbed, copies):
    ended = stage.play("--fault=1:6:in-backward", "--paced-from=5", story=third_joins, start=2, copies=copies)
    assert_undisturbed(ended)
    assert ended.who("worker.died") == ["worker 1"]
