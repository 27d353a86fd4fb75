"""What a script logs, and the files it writes, are in the run once per step, whatever happens to workers."""

import pytest

from elastane.api.control import AskDrain
from elastane.observability.compare import compare_runs

from .stage import kill, member_states

pytestmark = pytest.mark.processes

SCRIPT = "recording.py"


def logged(ended):
    return [dict(line.logged) for line in ended.run.ledger]


def artifacts(ended):
    folder = ended.run.run_dir.artifacts
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def quiet(stage):
    """One worker, to which nothing happens."""
    return stage.play(script=SCRIPT)


def assert_recorded_as(ended, quiet):
    assert ended.over.code == 0, ended.story()
    assert logged(ended) == logged(quiet), ended.story()
    assert [line.artifacts for line in ended.run.ledger] == [line.artifacts for line in quiet.run.ledger]
    assert artifacts(ended) == artifacts(quiet)
    assert ended.verdict.problems == (), ended.story()


def test_each_step_has_its_values_and_files_once(quiet):
    assert quiet.over.code == 0, quiet.story()
    names = {"accuracy", "of_right", "some_right", "weights", "noise", "own", "overflow"}
    assert [line.step for line in quiet.run.ledger] == list(range(1, 21))
    for line in quiet.run.ledger:
        expected = names | {"val_loss"} if line.step % 5 == 0 else names
        # A step without a right answer has not logged that name.
        assert expected - {"some_right"} <= line.logged.keys() <= expected
        assert 0 <= line.logged["accuracy"] <= 1
        assert line.logged["of_right"] in {None, 1.0}
        assert line.logged["overflow"] is None
        assert set(line.artifacts) == ({"weights.txt"} if line.step % 5 == 0 else set())
    assert None in {line.logged["of_right"] for line in quiet.run.ledger}
    assert set(artifacts(quiet)) == {f"step-{step}/weights.txt" for step in (5, 10, 15, 20)}
    assert quiet.verdict.ok


async def one_joins_one_is_killed_and_one_is_drained(running):
    await running.until_step(2)
    await running.resize(3)
    await running.pace(lambda answer: len(member_states(answer)) == 3)
    answer = await running.until(lambda _: True)
    kill(answer, "worker", 1)
    await running.pace(lambda answer: len(member_states(answer)) >= 2 and 1 not in member_states(answer))
    await running.ask(AskDrain(worker=0))
    running.go()


@pytest.mark.parametrize("copies", [None, 1])
def test_they_are_the_same_while_workers_join_die_and_leave(stage, quiet, copies):
    ended = stage.play(
        "--paced-from=3", script=SCRIPT, story=one_joins_one_is_killed_and_one_is_drained, copies=copies
    )
    assert_recorded_as(ended, quiet)
    assert compare_runs(quiet.run, ended.run).equal


def test_a_worker_that_dies_after_it_has_logged_and_before_the_others_have(stage, quiet):
    ended = stage.play("--die-after=1:10", script=SCRIPT, start=2)
    assert_recorded_as(ended, quiet)
    assert ended.who("worker.died") == ["worker 1"]


def test_a_step_that_was_computed_again_is_logged_once(stage, quiet):
    ended = stage.play("--fault=1:7:in-backward", script=SCRIPT, start=2)
    assert_recorded_as(ended, quiet)
    assert ended.who("worker.died") == ["worker 1"]


def test_steps_made_again_after_a_resume_are_logged_once(attempts, quiet):
    attempts.begin("--start=2", "--checkpoint-every=5 steps", script=SCRIPT, args=("--paced-from=13",))
    attempts.until_event("checkpoint.saved", 2)
    attempts.until_file("artifacts/step-10/weights.txt")
    attempts.kill_everything()
    attempts.open("gates")
    attempts.resume("--start=3")
    ended = attempts.ended()
    assert_recorded_as(ended, quiet)
    assert len(ended.events("run.resumed")) == 1


def test_a_value_that_differs_between_workers_ends_the_run_in_words(stage):
    ended = stage.play("--differ-at=4", script=SCRIPT, start=2)
    assert ended.over.code == 1, ended.story()
    assert "run.log" in ended.over.why, ended.story()
    assert len(ended.run.ledger) <= 4


def test_a_file_that_differs_between_workers_ends_the_run_in_words(stage):
    ended = stage.play("--differ-in-file=5", script=SCRIPT, start=2)
    assert ended.over.code == 1, ended.story()
    assert "run.artifact" in ended.over.why, ended.story()


def test_what_was_logged_before_the_script_failed_is_in_the_ledger(stage):
    ended = stage.play("--raise-after=6", script=SCRIPT)
    assert ended.over.code == 1
    assert len(ended.run.ledger) == 6
    assert "weights" in ended.run.ledger[-1].logged
