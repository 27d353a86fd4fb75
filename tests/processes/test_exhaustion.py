"""A worker whose own code runs out of a resource dies and is replaced; a script that does fails its run."""

import pytest

pytestmark = pytest.mark.processes


def exhausted(stage, moment, whom, **wishes):
    return stage.play(moment, whom, script="exhausted.py", **{"start": 2, "max_workers": 3} | wishes)


@pytest.mark.parametrize(
    ("moment", "resource"), [("prepare", "file descriptors"), ("threads", "threads or processes")]
)
def test_a_worker_that_meets_a_limit_of_its_own_is_replaced(stage, moment, resource):
    ended = exhausted(stage, moment, "1")
    assert ended.over.code == 0, ended.story()
    assert ended.who("worker.died") == ["worker 1"], ended.story()
    assert resource in ended.events("worker.died")[0].why
    assert not ended.events("worker.failed"), ended.story()
    assert len(ended.run.ledger) == 9
    assert ended.verdict.problems == ()


@pytest.mark.parametrize(
    ("moment", "resource", "do"),
    [("prepare", "file descriptors", "ulimit -n"), ("threads", "threads or processes", "ulimit -u")],
)
def test_a_limit_that_every_worker_meets_ends_the_run_and_is_named(stage, moment, resource, do):
    ended = exhausted(stage, moment, "all")
    assert ended.over.code == 1, ended.story()
    assert resource in ended.over.why
    assert do in ended.over.why
    assert len(ended.events("worker.started")) <= 5, ended.story()


@pytest.mark.parametrize(
    ("moment", "words"), [("dataset", "Too many open files"), ("memory of the dataset", "MemoryError")]
)
def test_a_limit_that_the_script_meets_is_its_failure(stage, moment, words):
    ended = exhausted(stage, moment, "all")
    assert ended.over.code == 1, ended.story()
    assert words in ended.over.traceback
    assert "exhausted.py" in ended.over.traceback
    assert len(ended.events("worker.started")) <= 3, ended.story()


def test_a_member_that_runs_out_in_mid_run_is_replaced_and_no_step_is_lost(stage):
    async def story(running):
        await running.until_step(3)
        await running.resize(3)
        await running.until_event("worker.died", "worker 1")

    ended = exhausted(stage, "step 3", "1", story=story)
    quiet = exhausted(stage, "step 3", "9")
    assert ended.over.code == 0, ended.story()
    assert ended.losses == quiet.losses
    assert "file descriptors" in ended.events("worker.died")[0].why, ended.story()
    assert ended.verdict.problems == ()


def test_a_member_that_cannot_write_the_model_leaves_it_to_another(stage, tmp_path):
    """Nobody may write more than a few bytes into one file, and only worker 0 is told so."""
    ended = exhausted(stage, "small files", "0")
    assert ended.over.code == 0, ended.story()
    assert ended.who("model.failing") == ["worker 0"], ended.story()
    assert ended.run.run_dir.model_files.weights.exists()
    assert ended.model == exhausted(stage, "none", "0").model
