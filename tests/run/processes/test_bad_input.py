"""A mistake of the user ends the run with one clear error, few restarts and a whole ledger."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import WAIT_S

from .stage import SCRIPTS
from .ways import EVERY_WAY

pytestmark = pytest.mark.processes


def play_mistake(stage, mistake, **options):
    ended = stage.play(mistake, script="mistaken.py", **{"start": 2, "max_workers": 2} | options)
    assert ended.outcome.code == 1, ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert len(ended.find_events("run.failed")) == 1
    assert len(ended.find_events("worker.started")) <= 3, ended.describe()
    return ended


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("import", "No module named 'no_such_module'"),
        ("exit", "SystemExit('nothing to do today')"),
        ("arguments", "error: unrecognized arguments: --unknown"),
        ("never joins", "it never called elastane.join()"),
        ("joins twice", "elastane.join() was called twice"),
        ("never trains", "it never entered the loop over run.steps(...)"),
        ("process group", "remove init_process_group"),
        ("batch", "not a multiple of the microbatch of 5"),
        ("few virtual ranks", "a step has 2 virtual ranks, too few for 3 workers"),
    ],
)
def test_a_mistake_before_the_first_step_ends_the_run(stage, mistake, words):
    ended = play_mistake(stage, mistake, max_workers=3)
    assert words in ended.outcome.traceback, ended.describe()
    assert ended.run.ledger == ()


@pytest.mark.parametrize(
    ("mistake", "words", "steps"),
    [
        ("dataset", "OSError: sample 3 is damaged", 2),
        ("step 3 of worker 1", "ZeroDivisionError: in the third step", 2),
        ("not finite", "the loss of step 3, virtual rank", 2),
    ],
)
def test_a_mistake_in_mid_run_ends_the_run(stage, mistake, words, steps):
    ended = play_mistake(stage, mistake)
    assert words in ended.outcome.traceback, ended.describe()
    assert len(ended.run.ledger) <= steps
    assert not ended.run.run_dir.model_files.weights.exists()


def test_the_traceback_begins_in_the_script(stage):
    ended = play_mistake(stage, "step 3 of worker 1")
    first, second, *_ = ended.outcome.traceback.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "mistaken.py" in second
    assert ended.find_subjects("worker.failed") == ["worker 1"]


def test_an_optimizer_that_cannot_be_sharded_ends_the_run(stage):
    ended = play_mistake(stage, "optimizer", copies=2)
    assert "--copies N cannot shard Adafactor" in ended.outcome.traceback


def test_leaving_the_loop_inside_a_step_ends_the_run(stage):
    ended = play_mistake(stage, "break inside")
    assert "left the loop over run.steps(...) inside a step" in ended.outcome.traceback


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("break on worker 1", "in a round to settle"),
        ("keeps its own", "differ in run.keep"),
        ("sets its own", "differ in the attribute scale"),
    ],
)
@pytest.mark.parametrize("copies", [2, pytest.param(None, marks=pytest.mark.long)])
def test_scripts_that_diverge_end_the_run(stage, mistake, words, copies):
    ended = play_mistake(stage, mistake, copies=copies)
    assert words in ended.outcome.traceback or "in one to settle" in ended.outcome.traceback, ended.describe()
    assert len(ended.run.ledger) <= 3
    assert not ended.run.run_dir.model_files.weights.exists()


def test_a_script_that_evaluates_on_one_worker_after_the_others_have_ended_ends_the_run(stage):
    ended = play_mistake(stage, "evaluates alone")
    assert "in a round to evaluate, and the script of worker 1 has ended" in ended.outcome.traceback
    assert len(ended.run.ledger) == 9


def test_a_claim_list_that_refuses_the_first_claim_ends_the_run(stage, tmp_path):
    """Elastane run has proven before that claims can be made; the list has changed since."""
    (tmp_path / "file").touch()
    ended = stage.play(claims=str(tmp_path / "file"), listen="127.0.0.2", start=1)
    assert ended.outcome.code == 2, ended.describe()
    assert "the claim list refuses the first claim of the run" in ended.outcome.why
    assert "is not a directory; nothing was claimed; do: name the directory" in ended.outcome.why
    assert not ended.run.run_dir.ledger.exists()
    log = ended.run.run_dir.node_files.log("coordinator").read_text()
    assert log.count("ERROR") == 1, log


def test_a_worker_with_another_script_is_refused_and_the_run_goes_on(
    stage, assert_equals_reference, tmp_path
):
    scripts = shutil.copytree(SCRIPTS, tmp_path / "scripts")

    async def disturb(run):
        await run.wait_for_step(4)
        with (scripts / "training.py").open("a") as file:
            file.write("# another one\n")
        await run.resize(3)
        await run.wait_for_event("worker.refused", "worker 2")
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, script=scripts / "training.py", start=2)
    assert_equals_reference(ended)
    assert "script_digest" in ended.find_events("worker.refused")[0].why
    assert ended.get_shares(30).keys() == {0, 1}


def test_a_worker_that_computes_other_bits_is_refused_and_the_run_goes_on(
    stage, assert_equals_reference, tmp_path
):
    """A joiner rounds one function in another way, as a library does that selects other kernels."""
    scripts = shutil.copytree(SCRIPTS, tmp_path / "scripts")

    async def disturb(run):
        await run.wait_for_step(4)
        with (scripts / "faults.py").open("a") as file:
            file.write("import torch\ntorch.tanh = lambda x: 1 - 2 / ((2 * x.float()).exp() + 1)\n")
        await run.resize(3)
        await run.wait_for_event("worker.refused", "worker 2")
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, script=scripts / "training.py", start=2)
    assert_equals_reference(ended)
    why = ended.find_events("worker.refused")[0].why
    assert "computes other bits" in why
    assert "no known fact differs" in why
    assert "worker 2" not in ended.find_subjects("worker.joined")
    assert ended.get_shares(30).keys() == {0, 1}


def test_a_worker_with_another_model_is_refused(stage):
    """The first worker pins the model; a worker with another one may not join."""
    ended = stage.play("another model", script="mistaken.py", start=2, max_workers=2)
    assert ended.outcome.code == 0, ended.describe()
    assert "parameters is" in ended.find_events("worker.refused")[0].why
    assert not set(ended.find_subjects("worker.refused")) & set(ended.find_subjects("worker.joined"))


def test_a_worker_with_another_dataset_is_refused(stage):
    ended = stage.play("another dataset", script="mistaken.py", start=2, max_workers=2)
    assert ended.outcome.code == 0, ended.describe()
    assert "the dataset has changed since the run began" in ended.find_events("worker.refused")[0].why
    assert not set(ended.find_subjects("worker.refused")) & set(ended.find_subjects("worker.joined"))


# -- errors of the command line, with exit code 2, before a process starts ----------------------------------


def run_elastane(*words):
    command = [str(Path(sys.executable).with_name("elastane")), "run", *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["no_such_script.py"], "there is no script"),
        (["--workers", "3:2", SCRIPTS / "training.py"], "MIN 3 is larger than MAX 2"),
        (["--workers", "1:9", "--virtual-ranks", "8", SCRIPTS / "training.py"], "only 8 virtual ranks"),
    ],
)
def test_options_that_contradict_each_other_are_refused(home, words, answer):
    done = run_elastane(*words)
    assert done.returncode == 2
    assert answer in " ".join(done.stderr.split())


def test_a_directory_of_another_run_is_left_alone(play_reference):
    there = play_reference(30).run.run_dir
    before = there.ledger.read_bytes()
    done = run_elastane("--run-dir", there.root, SCRIPTS / "training.py")
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert there.ledger.read_bytes() == before


def test_a_directory_in_use_is_left_alone(stage, assert_equals_reference):
    answers = []

    async def disturb(run):
        await run.wait_for_step(2)
        answers.append(run_elastane("--run-dir", run.run_dir.root, SCRIPTS / "training.py"))
        run.stop_pacing()

    assert_equals_reference(stage.play("--paced-from=3", disturb=disturb))
    assert answers[0].returncode == 2
    words = " ".join(answers[0].stderr.split())
    assert "is in use by a live run" in words
    assert "a new run needs another --name or --run-dir" in words


@pytest.mark.parametrize("way", EVERY_WAY)
def test_copies_of_the_state_that_differ_end_the_run(stage, way):
    """The next digest finds a worker that computes wrongly, before the next step."""
    ended = stage.play("--corrupt=1:8", start=3, **way)
    assert ended.outcome.code == 1
    assert "after step 10 workers" in ended.outcome.why, ended.describe()
    assert "have different" in ended.outcome.why
    assert len(ended.run.ledger) <= 10
    assert not ended.run.run_dir.model_files.weights.exists()


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_values_that_differ_from_those_of_their_owner_end_the_run(stage, transport):
    """Each worker has all values, even with one copy of the optimizer state."""
    ended = stage.play("--corrupt-values=1:8", start=3, copies=1, transport=transport, digest_every=3)
    assert ended.outcome.code == 1, ended.describe()
    assert "have different parameters in block" in ended.outcome.why, ended.describe()
    assert not ended.run.run_dir.model_files.weights.exists()
