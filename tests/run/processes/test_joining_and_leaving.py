"""Workers join and leave at commits; the other workers do not wait and compute nothing twice."""

import pytest

from elastane.run.nouns.control import AskDrain

from .stage import find_members, get_state
from .ways import EVERY_WAY, pair_with_ways

pytestmark = pytest.mark.processes
MICROBATCH = 2
"""That of ``scripts/training.py``."""


def assert_nothing_computed_twice(ended):
    # The workers of the first step compute three microbatches before it.
    rehearsals = sum(3 if worker < ended.run.record.spec.start else 1 for worker in ended.assignments)
    # At the end of an epoch some virtual ranks have no samples, so that nothing is computed for them.
    filled = {line.step: -(-line.samples.count // MICROBATCH) for line in ended.run.ledger}
    checks = sum(line.agreed for line in ended.run.ledger)
    computed = sum(
        count
        for ranks in ended.assignments.values()
        for (step, rank), count in ranks.items()
        if rank < filled[step]
    )
    assert computed == sum(filled.values()) + rehearsals + checks, ended.describe()


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_worker_joins(stage, assert_equals_reference, way):
    async def disturb(run):
        await run.wait_for_step(4)
        await run.resize(3)
        await run.wait_for_event("worker.ready", "worker 2")
        await run.step_until(lambda answer: 2 in find_members(answer))
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, start=2, **way)
    assert_equals_reference(ended)
    assert_nothing_computed_twice(ended)
    assert sorted(ended.find_subjects("worker.joined")) == ["worker 0", "worker 1", "worker 2"]
    assert ended.get_shares(30).keys() == {0, 1, 2}


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_worker_leaves(stage, assert_equals_reference, way):
    async def disturb(run):
        await run.wait_for_step(4)
        answer = await run.ask(AskDrain(worker=1))
        assert answer.ok
        await run.step_until(lambda answer: get_state(answer, 1) == "")
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, start=3, **way)
    assert_equals_reference(ended)
    assert_nothing_computed_twice(ended)
    assert ended.find_subjects("worker.left")[0] == "worker 1"
    assert ended.find_events("worker.died") == []
    assert 1 not in ended.get_shares(30)


def test_one_worker_grows_to_eight_and_shrinks_to_two(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(2)
        await run.resize(8)
        for joiner in range(1, 8):
            await run.wait_for_event("worker.ready", f"worker {joiner}")
        await run.step_until(lambda answer: find_members(answer) == set(range(8)))
        await run.resize(2)
        await run.step_until(lambda answer: find_members(answer) == {0, 1})
        run.stop_pacing()

    ended = stage.play("--paced-from=3", disturb=disturb, start=1)
    assert_equals_reference(ended)
    assert_nothing_computed_twice(ended)
    assert len(ended.get_shares(30)) == 2


def test_one_of_the_last_two_workers_leaves(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(4)
        await run.resize(1)
        await run.step_until(lambda answer: find_members(answer) == {0} and get_state(answer, 1) == "")
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, start=2, copies=2)
    assert_equals_reference(ended)
    assert_nothing_computed_twice(ended)


def test_members_train_on_while_a_slow_worker_starts(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(4)
        await run.resize(3)
        await run.wait_for_event("worker.started", "worker 2")
        answer = await run.step_until(lambda answer: answer.step >= 10)
        assert get_state(answer, 2) == "starting"
        run.touch("late")
        await run.wait_for_event("worker.ready", "worker 2")
        await run.step_until(lambda answer: 2 in find_members(answer))
        run.stop_pacing()

    ended = stage.play("--paced-from=5", "--late=2", disturb=disturb, start=2)
    assert_equals_reference(ended)
    assert ended.get_shares(10).keys() == {0, 1}
    assert ended.get_generation(10) == ended.get_generation(1)


# -- overlapping joins ----------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [None, 2])
def test_a_worker_joins_while_another_one_still_receives_its_state(stage, assert_equals_reference, copies):
    async def disturb(run):
        await run.wait_for_step(4)
        await run.resize(3)
        await run.wait_for_event("worker.ready", "worker 2")
        for step in range(5, 15):
            run.touch(f"gate-{step}")
        await run.resize(4)
        await run.wait_for_event("worker.ready", "worker 3")
        run.touch("load")
        await run.step_until(lambda answer: find_members(answer) == {0, 1, 2, 3})
        run.stop_pacing()

    ended = stage.play(
        "--load-late=2", "--paced-from=5", "--steps=60", disturb=disturb, start=2, copies=copies
    )
    assert_equals_reference(ended)
    assert ended.find_events("worker.died") == ended.find_events("worker.hung") == []
    assert ended.get_shares(60).keys() == {0, 1, 2, 3}


# -- faults while workers send state ---------------------------------------------------------------------


async def add_worker_2(run):
    await run.wait_for_step(4)
    await step_with_worker_2_until_a_death(run)


async def step_with_worker_2_until_a_death(run):
    """Add worker 2 and make steps until a worker dies: all other steps may take less time than a join."""
    await run.resize(3)
    await run.wait_for_event("worker.ready", "worker 2")
    await run.step_until(lambda _: any(event.kind == "worker.died" for event in run.read_events()))
    run.stop_pacing()


@pytest.mark.parametrize(
    ("moment", "way"), pair_with_ways(["joiner-after-status", "joiner-after-fetch", "joiner-before-loading"])
)
def test_a_worker_may_die_while_it_joins(stage, assert_equals_reference, moment, way):
    ended = stage.play(f"--fault=2:0:{moment}", "--paced-from=5", disturb=add_worker_2, start=2, **way)
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == ["worker 2"], ended.describe()


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_worker_may_die_before_it_answers_a_request_for_state(stage, assert_equals_reference, way):
    ended = stage.play(
        "--fault=1:0:donor-before-serving",
        "--paced-from=5",
        "--steps=60",
        disturb=add_worker_2_once_both_have_all_state,
        start=2,
        **way,
    )
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()


async def add_worker_2_once_both_have_all_state(run):
    """Add worker 2 once both members have all the state, so that one of them may die."""
    await run.wait_for_step(4)
    await run.step_until(lambda answer: all(row.blocks for row in answer.processes if row.role == "worker"))
    await step_with_worker_2_until_a_death(run)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_member_may_die_while_another_worker_joins(stage, assert_equals_reference, copies):
    ended = stage.play(
        "--fault=1:6:in-backward", "--paced-from=5", disturb=add_worker_2, start=2, copies=copies
    )
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == ["worker 1"]
