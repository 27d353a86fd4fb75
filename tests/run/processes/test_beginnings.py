"""A run that begins from the state of another one trains the bytes that the other one trained then."""

import contextlib
import hashlib
import os
import signal

import pytest

from elastane.run.nouns.checkpoints import format_checkpoint_name
from elastane.run.observability.compare import compare_runs

from .attempts import Attempts, play_from_checkpoint

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

        def start(*options, at="", at_url=False, args=(), **changes):
            run, files = stack.enter_context(Attempts(stage, tmp_path)), first.run.run_dir
            origin = files.checkpoints.as_uri() if at_url else files.root
            run.begin(f"--from={origin}{at}", EVERY_FOUR, *options, args=args, **changes)
            return run

        yield start


def read_files(root):
    return {
        path.relative_to(root): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("at", "step", "options", "at_url"),
    [
        ("@4", 4, ("--start=2",), False),
        ("@8", 8, ("--start=3", "--copies=2"), False),
        ("@8", 8, ("--start=2",), True),
    ],
)
def test_the_same_script_trains_the_same_bytes_from_a_step_on(first, begin, at, step, options, at_url):
    before = read_files(first.run.run_dir.root)
    ended = begin(*options, at=at, at_url=at_url, args=("--steps=12",)).wait_for_end()
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


@pytest.mark.long
@pytest.mark.parametrize("step", [7, 12])
def test_a_run_begins_at_a_cursor_of_a_stream(stage, tmp_path, step):
    expected = stage.play("stream", "--until=3 epochs", script="data_sources.py")
    ended = play_from_checkpoint(stage, tmp_path, "data_sources.py", "stream", "--until=3 epochs", step=step)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == expected.losses[step:]
    assert ended.model_digest == expected.model_digest
    assert ended.verdict.problems == (), ended.describe()


# -- another script ----------------------------------------------------------------------------------------

SMALL = """
import sys
import torch
from torch import nn
import elastane

run = elastane.join()
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(20, 4))
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
model[0].bias.requires_grad_(False)
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=0.1)
epochs = 2
exec(sys.argv[1] if len(sys.argv) > 1 else "")
run.prepare(model, optimizer)
for step in run.steps(data, global_batch=8, microbatch=4, until=f"{epochs} epochs"):
    for (inputs,) in step:
        rows = step.count(lambda batch: len(batch[0]))
        step.backward(model(inputs).square().sum() / rows, weight=1)
"""


@pytest.fixture(scope="module")
def small(stage, tmp_path_factory):
    """A finished run of two epochs, of three steps each, and its script."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.py").write_text(SMALL)
    with Attempts(stage, folder) as run:
        run.begin("--workers=1", "--checkpoint-every=2 steps", "--keep-last=9", script=folder / "small.py")
        assert run.wait_for_exit() == 0, run.output
        yield run.run_dir.root, folder / "small.py"


@pytest.fixture
def change(stage, tmp_path, small):
    """Return a function that begins a run from the small one, with a changed script."""
    root, script = small
    with Attempts(stage, tmp_path) as run:

        def start(changes, at=""):
            run.begin("--workers=1", f"--from={root}{at}", script=script, args=(f"epochs = 4; {changes}",))
            run.wait_for_exit()
            return run

        yield start


@pytest.mark.parametrize(
    ("changes", "at", "said"),
    [
        ("model[2] = nn.Linear(6, 2)", "", "does not fit the model: 2.weight"),
        ("model.pop(1); trained.pop(1); trained.pop(1)", "", "does not fit the model, which has no 1."),
        ("optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)", "", "the optimizer is SGD"),
        (
            "optimizer = torch.optim.AdamW([dict(params=trained[:2]), dict(params=trained[2:])])",
            "",
            "2 parameter groups, and the checkpoint has 1",
        ),
        ("data = torch.utils.data.TensorDataset(torch.randn(24, 4))", "@4", "now has 24 samples"),
    ],
)
def test_state_that_cannot_be_loaded_is_refused_in_words(change, changes, at, said):
    if "optimizer" not in changes:
        changes += (
            "; optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)"
        )
    run = change(changes, at)
    assert said in run.output, run.output
    assert run.find_events("run.failed")


def test_other_data_and_another_learning_rate_are_named(change):
    changes = (
        "data = torch.utils.data.TensorDataset(torch.randn(24, 4)); optimizer.param_groups[0]['lr'] = 0.01"
    )
    run = change(changes)
    ended = run.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    warnings = "; ".join(event.why for event in ended.find_events("warning"))
    assert "dataset_length 24 (formerly 20)" in warnings
    assert "lr 0.01 (formerly 0.1)" in warnings
    assert {line.learning_rates for line in ended.run.ledger} == {(0.01,)}
    assert ended.verdict.problems == ()
