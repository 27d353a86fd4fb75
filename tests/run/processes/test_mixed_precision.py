"""fp16, a plateau schedule and early stopping: scripts keep and decide the same, whichever workers train."""

from functools import cache

import pytest

from elastane.run.nouns.control import AskStop

from .stage import add_worker_2_and_drain_worker_0
from .ways import OPPOSITE_WAYS, pair_with_ways

pytestmark = pytest.mark.processes

LAST = 15


@pytest.fixture(scope="module")
def play_undisturbed(stage):
    """Return a function that trains one undisturbed worker, once for each way to end."""

    @cache
    def play(end="patience"):
        ended = stage.play(f"--end={end}", script="mixed.py")
        skipped = [line.step for line in ended.run.ledger if line.skipped]
        assert 1 in skipped
        assert 3 <= len(skipped) < LAST - 3, ended.describe()
        return ended

    return play


@pytest.fixture
def assert_equals_undisturbed(play_undisturbed):
    def check(ended, end="patience"):
        expected = play_undisturbed(end)
        assert ended.outcome.code == 0, ended.describe()
        assert len(ended.run.ledger) == LAST
        assert ended.losses == expected.losses
        assert [line.skipped for line in ended.run.ledger] == [line.skipped for line in expected.run.ledger]
        assert [line.grad_norm for line in ended.run.ledger] == [
            line.grad_norm for line in expected.run.ledger
        ]
        assert ended.digests == expected.digests
        assert ended.messages == expected.messages
        assert ended.model_digest == expected.model_digest
        assert ended.verdict.problems == ()

    return check


def test_a_run_that_its_script_ends_has_finished(play_undisturbed):
    ended = play_undisturbed()
    (finished,) = ended.find_events("run.finished")
    assert ended.outcome.code == 0
    assert (finished.who, finished.step) == ("script", LAST)
    assert "early stopping: nothing better than" in finished.why
    assert ended.run.run_dir.model_files.weights.exists()
    assert ended.verdict.problems == ()
    (digest,) = ended.find_events("digest")
    assert digest.step == LAST


@pytest.mark.parametrize("end", ["break", "return"])
def test_leaving_the_loop_ends_the_run_too(stage, play_undisturbed, assert_equals_undisturbed, end):
    ended = stage.play(f"--end={end}", script="mixed.py", start=2)
    assert_equals_undisturbed(ended, end)
    assert "left the loop after step 15" in ended.find_events("run.finished")[0].why
    assert ended.model_digest == play_undisturbed().model_digest


@pytest.mark.parametrize("way", OPPOSITE_WAYS)
def test_all_workers_stop_at_the_same_step_when_workers_have_joined_and_left(
    stage, assert_equals_undisturbed, way
):
    ended = stage.play(
        "--paced-from=5", disturb=add_worker_2_and_drain_worker_0, script="mixed.py", start=2, **way
    )
    assert_equals_undisturbed(ended)
    assert ended.get_shares(LAST).keys() == {1, 2}


@pytest.mark.parametrize(
    ("moment", "step", "way"),
    pair_with_ways(
        [("after-one-vote-that-counted", 2), ("in-backward", 6), ("before-apply", 7), ("in-backward", LAST)],
        OPPOSITE_WAYS,
    ),
)
def test_a_worker_may_die_in_a_step(stage, assert_equals_undisturbed, moment, step, way):
    ended = stage.play(f"--fault=1:{step}:{moment}", script="mixed.py", start=3, **way)
    assert_equals_undisturbed(ended)
    assert "worker 1" in ended.find_subjects("worker.died")


def test_a_run_that_a_user_stops_before_its_script_does_is_stopped(stage):
    async def disturb(run):
        await run.wait_for_step(4)
        await run.ask(AskStop())
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, script="mixed.py", start=2)
    assert ended.outcome.code == 130, ended.describe()
    assert len(ended.find_events("run.stopped")) == 1
    assert ended.verdict.problems == ()
