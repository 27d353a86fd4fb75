"""The values that a script logs and the files that it writes are in the run once per step."""

import pytest

from elastane.run.observability.compare import compare_runs

from .stage import add_kill_and_drain_workers

pytestmark = pytest.mark.processes

SCRIPT = "recording.py"


def read_logged(ended):
    return [dict(line.logged) for line in ended.run.ledger]


def read_artifacts(ended):
    folder = ended.run.run_dir.artifacts
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def reference(stage):
    """Train one undisturbed worker."""
    return stage.play(script=SCRIPT)


def assert_recorded_as(ended, reference):
    assert ended.outcome.code == 0, ended.describe()
    assert read_logged(ended) == read_logged(reference), ended.describe()
    assert [line.artifacts for line in ended.run.ledger] == [line.artifacts for line in reference.run.ledger]
    assert read_artifacts(ended) == read_artifacts(reference)
    assert ended.verdict.problems == (), ended.describe()


def test_each_step_has_its_values_and_files_once(reference):
    assert reference.outcome.code == 0, reference.describe()
    names = {"accuracy", "of_right", "some_right", "weights", "noise", "own", "overflow"}
    assert [line.step for line in reference.run.ledger] == list(range(1, 21))
    for line in reference.run.ledger:
        expected = names | {"val_loss"} if line.step % 5 == 0 else names
        # A step without a right answer has not logged that name.
        assert expected - {"some_right"} <= line.logged.keys() <= expected
        assert 0 <= line.logged["accuracy"] <= 1
        assert line.logged["of_right"] in {None, 1.0}
        assert line.logged["overflow"] is None
        assert set(line.artifacts) == ({"weights.txt"} if line.step % 5 == 0 else set())
    assert None in {line.logged["of_right"] for line in reference.run.ledger}
    assert set(read_artifacts(reference)) == {f"step-{step}/weights.txt" for step in (5, 10, 15, 20)}
    assert reference.verdict.ok


@pytest.mark.parametrize("copies", [None, 1])
def test_values_and_files_are_the_same_while_workers_join_die_and_leave(stage, reference, copies):
    ended = stage.play("--paced-from=3", script=SCRIPT, disturb=add_kill_and_drain_workers, copies=copies)
    assert_recorded_as(ended, reference)
    assert compare_runs(reference.run, ended.run).equal


def test_a_worker_may_die_after_it_has_logged_a_value(stage, reference):
    ended = stage.play("--die-after=1:10", script=SCRIPT, start=2)
    assert_recorded_as(ended, reference)
    assert ended.find_subjects("worker.died") == ["worker 1"]


def test_a_step_that_is_computed_again_is_logged_once(stage, reference):
    ended = stage.play("--fault=1:7:in-backward", script=SCRIPT, start=2)
    assert_recorded_as(ended, reference)
    assert ended.find_subjects("worker.died") == ["worker 1"]


def test_steps_that_are_repeated_after_a_resume_are_logged_once(attempts, reference):
    attempts.begin("--start=2", "--checkpoint-every=5 steps", script=SCRIPT, args=("--paced-from=13",))
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.wait_for_file("artifacts/step-10/weights.txt")
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=3")
    ended = attempts.wait_for_end()
    assert_recorded_as(ended, reference)
    assert len(ended.find_events("run.resumed")) == 1


def test_a_value_that_differs_between_workers_ends_the_run_and_is_named(stage):
    ended = stage.play("--differ-at=4", script=SCRIPT, start=2)
    assert ended.outcome.code == 1, ended.describe()
    assert "run.log" in ended.outcome.why, ended.describe()
    assert len(ended.run.ledger) <= 4


def test_a_file_that_differs_between_workers_ends_the_run_and_is_named(stage):
    ended = stage.play("--differ-in-file=5", script=SCRIPT, start=2)
    assert ended.outcome.code == 1, ended.describe()
    assert "run.artifact" in ended.outcome.why, ended.describe()


def test_values_logged_before_the_script_failed_are_in_the_ledger(stage):
    ended = stage.play("--raise-after=6", script=SCRIPT)
    assert ended.outcome.code == 1
    assert len(ended.run.ledger) == 6
    assert "weights" in ended.run.ledger[-1].logged
