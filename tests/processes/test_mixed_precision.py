"""fp16, a plateau and patience: what scripts keep and decide is the same for every history of workers."""

from functools import cache

import pytest

from elastane.api.control import AskStop

from .stage import one_joins_and_one_leaves

pytestmark = pytest.mark.processes

LAST = 15
WAYS = [
    pytest.param({"copies": None, "transport": "shared"}, id="whole-shared"),
    pytest.param({"copies": 2, "transport": "tcp"}, id="sharded-tcp"),
]


@pytest.fixture(scope="module")
def alone(stage):
    """One worker to which nothing happens, once per way to end."""

    @cache
    def play(end="patience"):
        ended = stage.play(f"--end={end}", script="mixed.py")
        skipped = [line.step for line in ended.run.ledger if line.skipped]
        assert 1 in skipped
        assert 3 <= len(skipped) < LAST - 3, ended.story()
        return ended

    return play


@pytest.fixture
def assert_as_alone(alone):
    def check(ended, end="patience"):
        expected = alone(end)
        assert ended.over.code == 0, ended.story()
        assert len(ended.run.ledger) == LAST
        assert ended.losses == expected.losses
        assert [line.skipped for line in ended.run.ledger] == [line.skipped for line in expected.run.ledger]
        assert [line.grad_norm for line in ended.run.ledger] == [
            line.grad_norm for line in expected.run.ledger
        ]
        assert ended.digests == expected.digests
        assert ended.said == expected.said
        assert ended.model == expected.model
        assert ended.verdict.problems == ()

    return check


def test_a_run_that_its_script_ends_has_finished(alone):
    ended = alone()
    (finished,) = ended.events("run.finished")
    assert ended.over.code == 0
    assert (finished.who, finished.step) == ("script", LAST)
    assert "early stopping: nothing better than" in finished.why
    assert ended.run.run_dir.model_files.weights.exists()
    assert ended.verdict.problems == ()
    (digest,) = ended.events("digest")
    assert digest.step == LAST


@pytest.mark.parametrize("end", ["break", "return"])
def test_leaving_the_loop_ends_the_run_too(stage, alone, assert_as_alone, end):
    ended = stage.play(f"--end={end}", script="mixed.py", start=2)
    assert_as_alone(ended, end)
    assert "left the loop after step 15" in ended.events("run.finished")[0].why
    assert ended.model == alone().model


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_joins_another_leaves_and_all_stop_at_the_same_step(stage, assert_as_alone, way):
    ended = stage.play("--paced-from=5", story=one_joins_and_one_leaves, script="mixed.py", start=2, **way)
    assert_as_alone(ended)
    assert ended.shares(LAST).keys() == {1, 2}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("moment", "step"),
    [("after-one-vote-that-counted", 2), ("in-backward", 6), ("before-apply", 7), ("in-backward", LAST)],
)
def test_a_worker_dies_in_a_step(stage, assert_as_alone, way, moment, step):
    ended = stage.play(f"--fault=1:{step}:{moment}", script="mixed.py", start=3, **way)
    assert_as_alone(ended)
    assert "worker 1" in ended.who("worker.died")


def test_a_user_who_stops_the_run_first_has_stopped_it(stage):
    async def story(running):
        await running.until_step(4)
        await running.ask(AskStop())
        running.go()

    ended = stage.play("--paced-from=5", story=story, script="mixed.py", start=2)
    assert ended.over.code == 130, ended.story()
    assert len(ended.events("run.stopped")) == 1
    assert ended.verdict.problems == ()
