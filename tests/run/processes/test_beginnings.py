"""A run that begins from the state of another one trains the bytes that the other one trained then."""

import contextlib
import hashlib
import os
import signal

import pytest

from elastane.run.nouns.checkpoints import format_checkpoint_name
from elastane.run.observability.compare import compare_runs

from .attempts import Attempts

pytestmark = pytest.mark.processes

EVERY_FOUR = "--checkpoint-every=4 steps"


@pytest.fixture(scope="module")
def first(stage, tmp_path_factory):
    """A finished run of 12 steps, three epochs, with a checkpoint of every fourth step."""
    with Attempts(stage, tmp_path_factory.mktemp("first")) as run:
        run.begin(EVERY_FOUR, "--keep-last=9", args=("--steps=12",))
        ended = run.wait_for_end()
        assert ended.outcome.code == 0, ended.describe()
        yield ended


@pytest.fixture
def begin(stage, tmp_path, first):
    """Return a function that begins another run from the first one, at a step or its end."""
    with contextlib.ExitStack() as stack:

        def start(*options, at="", args=(), **changes):
            run = stack.enter_context(Attempts(stage, tmp_path))
            run.begin(f"--from={first.run.run_dir.root}{at}", EVERY_FOUR, *options, args=args, **changes)
            return run

        yield start


def read_files(root):
    return {
        path.relative_to(root): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("at", "step", "options"), [("@4", 4, ("--start=2",)), ("@8", 8, ("--start=3", "--copies=2"))]
)
def test_the_same_script_trains_the_same_bytes_from_a_step_on(first, begin, at, step, options):
    before = read_files(first.run.run_dir.root)
    ended = begin(*options, at=at, args=("--steps=12",)).wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    assert [line.step for line in ended.run.ledger] == [*range(step + 1, 13)]
    assert ended.losses == first.losses[step:]
    assert ended.model_digest == first.model_digest
    assert ended.verdict.problems == (), ended.describe()
    assert read_files(first.run.run_dir.root) == before, "the first run is only read"
    comparison = compare_runs(ended.run, first.run)
    assert (comparison.equal, comparison.same_steps) == (True, 12 - step)
    assert any("taken on trust" in remark for remark in ended.verdict.remarks)


def test_a_finished_run_trains_on_with_more_epochs(first, begin, play_reference):
    expected = play_reference(30)
    run = begin("--start=2", args=("--steps=30", "--paced-from=22"))
    run.wait_for_step(21)
    run.kill_everything()
    run.touch("gates")
    run.resume("--start=1")
    ended = run.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == expected.losses[12:], "also after a resume of the new run"
    assert ended.model_digest == expected.model_digest
    assert ended.verdict.problems == ()
    origin = ended.run.record.origin
    assert (origin.run, origin.step, origin.position.epoch) == (first.run.record.spec.name, 12, 3)
    assert any("has the digest of its ledger" in remark for remark in ended.verdict.remarks)
    assert origin.run in ended.find_events("run.started")[0].why


def test_a_run_that_loses_all_its_state_goes_back_to_the_state_with_which_it_began(begin, play_reference):
    run = begin("--start=2", "--checkpoint-every=1h", args=("--steps=30", "--paced-from=15"))
    run.wait_for_step(14)
    for row in run.status.processes:
        if row.role == "worker":
            os.kill(row.pid, signal.SIGKILL)
    run.touch("gates")
    ended = run.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    (resumed,) = ended.find_events("run.resumed")
    assert (resumed.step, resumed.detail["lost_steps"]) == (12, 2)
    assert ended.model_digest == play_reference(30).model_digest


def test_a_run_without_checkpoints_of_its_own_begins_from_one(begin, play_reference):
    ended = begin("--checkpoint-every=never", args=("--steps=30",)).wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    assert ended.model_digest == play_reference(30).model_digest


def test_a_run_that_would_end_where_it_begins_is_refused_in_words(begin):
    run = begin(args=("--steps=12",))
    assert run.wait_for_exit() != 0
    assert "until counts the steps and epochs of that run too" in run.output


def test_the_copy_of_the_checkpoint_is_the_first_one_of_the_new_run(begin):
    run = begin(at="@8", args=("--steps=10", "--paced-from=10"))
    run.wait_for_step(9)
    assert run.list_complete_checkpoints() == [format_checkpoint_name(8)]
    assert run.catalog.verify(format_checkpoint_name(8)) == ()
    run.touch("gates")
    assert run.wait_for_end().outcome.code == 0
