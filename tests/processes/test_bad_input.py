"""What cannot work ends with one clear answer: no restart for ever, nothing half done, a whole ledger."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .stage import SCRIPTS

pytestmark = pytest.mark.processes


def mistaken(stage, mistake, **wishes):
    ended = stage.play(mistake, script="mistaken.py", **{"start": 2, "max_workers": 2} | wishes)
    assert ended.over.code == 1, ended.story()
    assert ended.verdict.problems == (), ended.story()
    assert len(ended.events("run.failed")) == 1
    assert len(ended.events("worker.started")) <= 3, ended.story()
    return ended


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("import", "No module named 'no_such_module'"),
        ("exit", "SystemExit('nothing to do today')"),
        ("never joins", "it never called elastane.join()"),
        ("joins twice", "elastane.join() was called twice"),
        ("never trains", "it never entered the loop over run.steps(...)"),
        ("process group", "remove init_process_group"),
        ("batch", "not a multiple of the microbatch of 5"),
        ("few virtual ranks", "a step has 2 virtual ranks, too few for 3 workers"),
    ],
)
def test_before_the_first_step(stage, mistake, words):
    ended = mistaken(stage, mistake, max_workers=3)
    assert words in ended.over.traceback, ended.story()
    assert ended.run.ledger == ()


@pytest.mark.parametrize(
    ("mistake", "words", "steps"),
    [
        ("dataset", "OSError: sample 3 is damaged", 2),
        ("step 3 of worker 1", "ZeroDivisionError: in the third step", 2),
        ("not finite", "the loss of step 3, virtual rank", 2),
    ],
)
def test_in_the_middle_of_the_training(stage, mistake, words, steps):
    ended = mistaken(stage, mistake)
    assert words in ended.over.traceback, ended.story()
    assert len(ended.run.ledger) <= steps
    assert not ended.run.run_dir.model_files.weights.exists()


def test_the_traceback_is_the_scripts_own(stage):
    ended = mistaken(stage, "step 3 of worker 1")
    first, second, *_ = ended.over.traceback.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "mistaken.py" in second
    assert ended.who("worker.failed") == ["worker 1"]


def test_an_optimizer_that_cannot_be_sharded(stage):
    ended = mistaken(stage, "optimizer", copies=2)
    assert "--copies N cannot shard Adafactor" in ended.over.traceback


def test_a_loop_that_is_left_inside_a_step(stage):
    ended = mistaken(stage, "break inside")
    assert "left the loop over run.steps(...) inside a step" in ended.over.traceback


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("break on worker 1", "in a round to settle"),
        ("keeps its own", "differ in run.keep"),
    ],
)
@pytest.mark.parametrize("copies", [None, 2])
def test_scripts_that_go_different_ways(stage, mistake, words, copies):
    ended = mistaken(stage, mistake, copies=copies)
    assert words in ended.over.traceback or "in one to settle" in ended.over.traceback, ended.story()
    assert len(ended.run.ledger) <= 3
    assert not ended.run.run_dir.model_files.weights.exists()


def test_a_worker_with_another_script_is_refused_and_the_run_goes_on(stage, assert_undisturbed, tmp_path):
    scripts = shutil.copytree(SCRIPTS, tmp_path / "scripts")

    async def story(running):
        await running.until_step(4)
        with (scripts / "training.py").open("a") as file:
            file.write("# another one\n")
        await running.resize(3)
        await running.until_event("worker.refused", "worker 2")
        running.go()

    ended = stage.play("--paced-from=5", story=story, script=scripts / "training.py", start=2)
    assert_undisturbed(ended)
    assert "script_digest" in ended.events("worker.refused")[0].why
    assert ended.shares(30).keys() == {0, 1}


def test_a_worker_with_another_model_is_refused(stage):
    """The first to load the script pins the run; whoever does not fit is not let in."""
    ended = stage.play("another model", script="mistaken.py", start=2, max_workers=2)
    assert ended.over.code == 0, ended.story()
    assert "parameters is" in ended.events("worker.refused")[0].why
    assert not set(ended.who("worker.refused")) & set(ended.who("worker.joined"))


def test_a_worker_with_another_dataset_is_refused(stage):
    ended = stage.play("another dataset", script="mistaken.py", start=2, max_workers=2)
    assert ended.over.code == 0, ended.story()
    assert "the dataset has changed since the run began" in ended.events("worker.refused")[0].why
    assert not set(ended.who("worker.refused")) & set(ended.who("worker.joined"))


# -- before anything starts: the command line answers with exit code 2 --------------------------------------


def elastane(*words):
    command = [str(Path(sys.executable).with_name("elastane")), "run", *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["no_such_script.py"], "there is no script"),
        (["--workers", "3:2", SCRIPTS / "training.py"], "MIN 3 is larger than MAX 2"),
        (["--workers", "1:9", "--virtual-ranks", "8", SCRIPTS / "training.py"], "only 8 virtual ranks"),
    ],
)
def test_options_that_do_not_fit(home, words, answer):
    done = elastane(*words)
    assert done.returncode == 2
    assert answer in " ".join(done.stderr.split())


def test_a_directory_of_another_run_is_left_alone(quiet):
    there = quiet(30).run.run_dir
    before = there.ledger.read_bytes()
    done = elastane("--run-dir", there.root, SCRIPTS / "training.py")
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert there.ledger.read_bytes() == before


def test_a_directory_in_use_is_left_alone(stage, assert_undisturbed):
    answers = []

    async def story(running):
        await running.until_step(2)
        answers.append(elastane("--run-dir", running.run_dir.root, SCRIPTS / "training.py"))
        running.go()

    assert_undisturbed(stage.play("--paced-from=3", story=story))
    assert answers[0].returncode == 2
    assert "is in use by a live run" in " ".join(answers[0].stderr.split())


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_copies_of_the_state_that_differ(stage, copies, transport):
    """A machine that computes wrongly is noticed with the next digest, before the next step."""
    ended = stage.play("--corrupt=1:8", start=3, copies=copies, transport=transport)
    assert ended.over.code == 1
    assert "after step 10 workers" in ended.over.why, ended.story()
    assert "have different" in ended.over.why
    assert len(ended.run.ledger) <= 10
    assert not ended.run.run_dir.model_files.weights.exists()


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_values_that_differ_from_those_of_their_owner(stage, transport):
    """With one copy of the optimizer state there are as many of the values as there are workers."""
    ended = stage.play("--corrupt-values=1:8", start=3, copies=1, transport=transport, digest_every=3)
    assert ended.over.code == 1, ended.story()
    assert "have different parameters in block" in ended.over.why, ended.story()
    assert not ended.run.run_dir.model_files.weights.exists()
