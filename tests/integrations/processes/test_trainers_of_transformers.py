"""The trainers of ``transformers`` and ``trl`` give the same bytes while workers join, die and leave."""

import functools
import json

import pytest
import torch
from safetensors.torch import load_file

from tests.run.processes.attempts import play_from_checkpoint
from tests.run.processes.stage import add_kill_and_drain_workers, find_members

pytestmark = pytest.mark.processes

SCRIPT = "transformers_training.py"
MODULES = (
    "datasets",
    "peft",
    "trl",
    "transformers",
    "transformers.models.llama.modeling_llama",
    "elastane.integrations.transformers",
    "elastane.integrations.trl",
)
OF_ONE_PROCESS = ("_runtime", "_per_second")


@pytest.fixture(scope="module")
def play(stage):
    """Return a function that trains with these arguments, in processes that have loaded the libraries."""
    stage.preload(*MODULES)
    return functools.partial(stage.play, script=SCRIPT, max_workers=4, digest_every=1)


@pytest.fixture(scope="module")
def play_reference(play):
    """Return a function that trains one undisturbed worker, once for each kind of training."""
    return functools.cache(play)


def read_history(ended):
    """Return the history of the newest checkpoint folder of the Trainer, without times."""
    folder = max(ended.run.run_dir.root.glob("out/checkpoint-*"), key=lambda path: int(path.name[11:]))
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [
        {name: value for name, value in entry.items() if not name.endswith(OF_ONE_PROCESS)}
        for entry in history
    ]


def read_folders(ended):
    """Return the weights in each folder that the Trainer wrote."""
    root = ended.run.run_dir.root
    return {
        str(path.relative_to(root)): path.read_bytes()
        for pattern in ("out/checkpoint-*/*.safetensors", "final/*.safetensors")
        for path in root.glob(pattern)
    }


def assert_trained_as(ended, reference):
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == reference.losses, ended.describe()
    assert ended.digests == reference.digests, ended.describe()
    assert ended.model_digest == reference.model_digest
    assert [line.logged for line in ended.run.ledger] == [line.logged for line in reference.run.ledger]
    assert read_folders(ended) == read_folders(reference)
    assert read_history(ended) == read_history(reference)
    assert ended.verdict.problems == (), ended.describe()


def test_a_trainer_writes_what_it_writes_alone(play_reference):
    ended = play_reference("--kind=trainer")
    assert ended.outcome.code == 0, ended.describe()
    assert ended.verdict.ok, ended.verdict
    assert {line.step for line in ended.run.ledger if "eval_loss" in line.logged} == {3, 6, 9}
    assert {line.step for line in ended.run.ledger if "loss" in line.logged} == {2, 4, 6, 8}
    assert "train_loss" in ended.run.ledger[-1].logged
    assert set(read_folders(ended)) == {
        f"{folder}/model.safetensors" for folder in ("out/checkpoint-6", "out/checkpoint-9", "final")
    }
    final = ended.run.run_dir.root / "final"
    assert (
        load_file(final / "model.safetensors").keys()
        == load_file(ended.run.run_dir.model_files.weights).keys()
    )
    from transformers import AutoModelForCausalLM

    tokens = torch.arange(2, 12)[None]
    saved, finished = (
        AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
        for folder in (final, ended.run.run_dir.root)
    )
    assert torch.equal(saved, finished)


@pytest.mark.parametrize("kind", ["trainer", "sft", "dpo", "reentrant"])
def test_workers_may_join_die_and_leave(play, play_reference, kind):
    ended = play(f"--kind={kind}", "--paced-from=2", disturb=add_kill_and_drain_workers)
    assert_trained_as(ended, play_reference(f"--kind={kind}"))
    assert len({line.generation for line in ended.run.ledger}) > 2


def test_workers_that_cut_batches_agree_on_the_scale_of_a_loss(play):
    options = {"virtual_ranks": 8}
    reference = play("--kind=averaged", **options)
    ended = play("--kind=averaged", "--paced-from=2", **options, disturb=add_kill_and_drain_workers)
    assert_trained_as(ended, reference)
    # Two virtual ranks share a batch, and this loss is the sum over the four batches of a step.
    assert 4 * 4 < reference.run.ledger[0].loss < 4 * 5


def test_a_worker_may_die_while_it_writes_a_checkpoint(play, play_reference):
    # The other worker waits for the lock, gets it from the kernel, and writes the folder.
    ended = play("--kind=trainer", "--die-in-save", start=2)
    assert_trained_as(ended, play_reference("--kind=trainer"))
    assert len(ended.find_subjects("worker.died")) == 1


def test_a_training_resumes_on_other_workers(stage, attempts, play_reference):
    stage.preload(*MODULES)
    attempts.begin(
        "--start=2",
        "--workers=1:4",
        "--digest-every=1",
        "--checkpoint-every=2 steps",
        script=SCRIPT,
        args=("--kind=trainer", "--paced-from=6"),
    )
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume()
    assert_trained_as(attempts.wait_for_end(), play_reference("--kind=trainer"))


@pytest.mark.long
def test_a_training_begins_from_a_step_of_another_one(stage, tmp_path, play_reference):
    stage.preload(*MODULES)
    reference = play_reference("--kind=trainer")
    options = ("--workers=1:4", "--digest-every=1")
    ended = play_from_checkpoint(stage, tmp_path, SCRIPT, "--kind=trainer", step=4, options=options)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == reference.losses[4:], ended.describe()
    assert ended.model_digest == reference.model_digest
    assert ended.verdict.problems == (), ended.describe()


async def add_worker_after_a_checkpoint(run):
    await run.wait_for_step(4)
    assert (run.run_dir.root / "out/checkpoint-3").is_dir()
    await run.resize(2)
    await run.wait_for_event("worker.ready", "worker 1")
    await run.step_until(lambda answer: len(find_members(answer)) == 2)
    run.stop_pacing()


def test_a_worker_that_joins_ignores_the_checkpoint_that_its_script_finds(play, play_reference):
    ended = play("--kind=trainer", "--resume-newest", "--paced-from=5", disturb=add_worker_after_a_checkpoint)
    assert_trained_as(ended, play_reference("--kind=trainer"))
    assert not ended.find_events("worker.failed"), ended.describe()
    assert len({line.generation for line in ended.run.ledger}) > 1


def test_all_workers_stop_when_a_callback_does(play, play_reference):
    reference = play_reference("--kind=trainer", "--stop-early")
    assert [line.step for line in reference.run.ledger] == [1, 2, 3, 4, 5, 6], reference.describe()
    assert_trained_as(play("--kind=trainer", "--stop-early", start=3), reference)


def test_a_counter_that_joining_workers_lack_gets_one_warning_and_one_that_is_sent_goes_on(play):
    ended = play("--kind=trainer", "--count", "--paced-from=2", disturb=add_kill_and_drain_workers)
    assert ended.outcome.code == 0, ended.describe()
    (warning,) = ended.find_events("warning")
    assert "the callback Counter changes its attribute count" in warning.why
    state = json.loads((ended.run.run_dir.root / "out/checkpoint-9/trainer_state.json").read_text())
    assert state["stateful_callbacks"]["SentCounter"]["attributes"] == {"count": 9}


def test_a_checkpoint_with_the_optimizer_needs_all_of_it(play):
    ended = play("--kind=trainer", copies=1)
    assert ended.outcome.code == 1
    assert "save_only_model=True" in ended.outcome.traceback


@pytest.mark.long
def test_workers_may_share_the_state_of_the_optimizer(play):
    options = ("--kind=trainer", "--save-only-model")
    reference = play(*options, copies=1)
    ended = play(*options, "--paced-from=2", copies=2, start=2, disturb=add_kill_and_drain_workers)
    assert reference.outcome.code == 0, reference.describe()
    assert_trained_as(ended, reference)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["lora", "metrics", "sft-lora", "bf16", "fp16", "recomputed"])
def test_workers_may_join_die_and_leave_in_other_trainings(play, play_reference, kind):
    ended = play(f"--kind={kind}", "--paced-from=2", disturb=add_kill_and_drain_workers)
    assert_trained_as(ended, play_reference(f"--kind={kind}"))


@pytest.mark.long
@pytest.mark.parametrize("start", [2, 3, 4])
@pytest.mark.parametrize("kind", ["trainer", "sft", "dpo"])
def test_the_number_of_workers_does_not_matter(play, play_reference, kind, start):
    assert_trained_as(play(f"--kind={kind}", start=start), play_reference(f"--kind={kind}"))
