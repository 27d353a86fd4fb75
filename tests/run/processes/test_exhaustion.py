"""A worker is replaced if Elastane's code exhausts a resource; the run fails if the script exhausts one."""

import pytest

pytestmark = pytest.mark.processes


def play_exhaustion(stage, moment, workers, **options):
    return stage.play(moment, workers, script="exhausted.py", **{"start": 2, "max_workers": 3} | options)


@pytest.mark.parametrize(
    ("moment", "resource"), [("prepare", "file descriptors"), ("threads", "threads or processes")]
)
def test_a_worker_that_alone_exhausts_a_resource_is_replaced(stage, moment, resource):
    ended = play_exhaustion(stage, moment, "1")
    assert ended.outcome.code == 0, ended.describe()
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert resource in ended.find_events("worker.died")[0].why
    assert not ended.find_events("worker.failed"), ended.describe()
    assert len(ended.run.ledger) == 9
    assert ended.verdict.problems == ()


@pytest.mark.parametrize(
    ("moment", "resource", "do"),
    [("prepare", "file descriptors", "ulimit -n"), ("threads", "threads or processes", "ulimit -u")],
)
def test_a_resource_that_every_worker_exhausts_ends_the_run_and_is_named(stage, moment, resource, do):
    ended = play_exhaustion(stage, moment, "all")
    assert ended.outcome.code == 1, ended.describe()
    assert resource in ended.outcome.why
    assert do in ended.outcome.why
    assert len(ended.find_events("worker.started")) <= 5, ended.describe()


@pytest.mark.parametrize(
    ("moment", "words"), [("dataset", "Too many open files"), ("memory of the dataset", "MemoryError")]
)
def test_a_resource_that_the_script_exhausts_ends_the_run_with_its_traceback(stage, moment, words):
    ended = play_exhaustion(stage, moment, "all")
    assert ended.outcome.code == 1, ended.describe()
    assert words in ended.outcome.traceback
    assert "exhausted.py" in ended.outcome.traceback
    assert len(ended.find_events("worker.started")) <= 3, ended.describe()


def test_a_member_that_exhausts_a_resource_in_mid_run_is_replaced_and_no_step_is_lost(stage):
    async def disturb(run):
        await run.wait_for_step(3)
        await run.resize(3)
        await run.wait_for_event("worker.died", "worker 1")
        run.stop_pacing()

    ended = play_exhaustion(stage, "step 3", "1", disturb=disturb)
    reference = play_exhaustion(stage, "step 3", "none")
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == reference.losses
    assert "file descriptors" in ended.find_events("worker.died")[0].why, ended.describe()
    assert ended.verdict.problems == ()


def test_a_member_that_cannot_write_the_model_leaves_it_to_another(stage, tmp_path):
    """Only worker 0 is limited to files of a few bytes."""
    ended = play_exhaustion(stage, "small files", "0")
    assert ended.outcome.code == 0, ended.describe()
    assert ended.find_subjects("model.failing") == ["worker 0"], ended.describe()
    assert ended.run.run_dir.model_files.weights.exists()
    assert ended.model_digest == play_exhaustion(stage, "none", "0").model_digest
