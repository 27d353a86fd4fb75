"""Every family and task trains for hundreds of steps on real text, is disturbed in every way, and loads."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from elastane.api.control import AskDrain, AskResize, AskStatus
from elastane.cli.main import app
from elastane.recipes.recipe_files import format_recipe
from tests.processes.attempts import Attempts
from tests.processes.stage import kill

from .rehearsed_runs import (
    PACED,
    find_script,
    make_small_recipe,
    play_recipe,
    read_files,
    release_all_steps,
)

pytestmark = [pytest.mark.processes, pytest.mark.long]

STEPS = 200
SMALLER = (
    "batch.size=4",
    "batch.context=64",
    "data.held_out=0.05",
    "evaluation.every=100",
    "evaluation.samples=24",
    f"training.steps={STEPS}",
    "training.warmup_steps=10",
)
NARROW = ("n_embd=48", "n_layer=1"), ("hidden_size=48", "intermediate_size=96", "num_hidden_layers=1")
"""The sizes of a GPT, and of all other families."""
DIGEST_EVERY, CHECKPOINT_EVERY = 5, 50
GROWN, KILLED, DRAINED, ENDED = 60, 80, 95, 115
"""The steps at which a worker joins, one is killed, one leaves, and all processes are killed."""

HELD_OUT_LOSS = {"": 4.8, "-chat": 4.5, "-lora": 5.9, "-dpo": 0.4}
"""The loss in nats that each task reaches on held-out text. That of an untrained model is 5.99, and 0.69 for
preferences. The adapter is on random weights, which learn little."""
CASES = [
    pytest.param(family, task, id=f"{family}-tiny{task}")
    for family in ("llama", "gpt-oss", "qwen3", "gpt")
    for task in HELD_OUT_LOSS
]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(("family", "task"), CASES)
def test_hundreds_of_steps_with_every_disturbance_have_the_bits_of_an_undisturbed_run(
    stage, tmp_path, family, task
):
    sizes = [f"model.config.{size}" for size in NARROW[family != "gpt"]]
    recipe = make_small_recipe(f"{family}-tiny{task}", *SMALLER, *sizes)
    reference = play_recipe(
        stage, recipe, tmp_path / "undisturbed", release_all_steps, digest_every=DIGEST_EVERY
    )
    *_, last = reference.messages
    assert last.startswith(f"step {STEPS}: ")
    assert float(re.search(r"held-out loss ([\d.]+)", last)[1]) < HELD_OUT_LOSS[task]
    with Attempts(stage, tmp_path) as attempts:
        disturb_run(attempts, recipe, tmp_path)
        ended = attempts.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    assert {len(line.workers) for line in ended.run.ledger} >= {1, 2, 3}
    assert ended.losses == reference.losses
    assert ended.digests == reference.digests
    assert read_files(ended) == read_files(reference)
    assert ended.verdict.problems == (), ended.describe()
    loaded = load_result(ended.run.run_dir.root, tmp_path / "exported")
    assert torch.equal(compute_logits(loaded), read_logits(ended))


def disturb_run(attempts: Attempts, recipe, folder: Path) -> None:
    """Let a worker join, kill one, let one leave, kill all processes, and resume on one worker."""
    file = folder / "recipe.yaml"
    file.write_text(format_recipe(recipe))
    options = (
        "--start=2",
        f"--checkpoint-every={CHECKPOINT_EVERY} steps",
        f"--workers=1:{recipe.batch.virtual_ranks}",
    )
    attempts.begin(*options, script=str(PACED), args=(str(find_script(recipe)), str(file)), sized=False)
    attempts.wait_for_step(2)
    release_steps(attempts, GROWN)
    attempts.wait_for_step(GROWN)
    attempts.ask(AskResize(workers=3))
    attempts.wait_for_event("worker.ready", 3)
    release_steps(attempts, KILLED)
    attempts.wait_for_step(KILLED)
    # The worker dies wherever in the next step it is.
    release_steps(attempts, KILLED + 1)
    kill(attempts.ask(AskStatus()), "worker", 0)
    release_steps(attempts, DRAINED)
    attempts.wait_for_event("worker.died")
    attempts.ask(AskDrain(worker=1))
    release_steps(attempts, ENDED)
    attempts.wait_for_event("worker.left")
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=1")


def release_steps(attempts: Attempts, last: int) -> None:
    """Let the paced run make all steps up to this one."""
    for step in range(3, last + 1):
        attempts.touch(f"gate-{step}")


def load_result(root: Path, exported: Path):
    """Load the model of a run; an adapter is exported with its base, which has random weights and no name."""
    if not (root / "adapter_config.json").exists():
        return AutoModelForCausalLM.from_pretrained(root)
    result = CliRunner().invoke(app, ["export", str(root), "--format", "hf", "--out", str(exported)])
    assert result.exit_code == 0, result.output
    return AutoModelForCausalLM.from_pretrained(exported)


def read_logits(ended) -> torch.Tensor:
    (path,) = ended.run.run_dir.root.glob("logits-*.pt")
    return torch.load(path)


@torch.no_grad()
def compute_logits(model) -> torch.Tensor:
    """Return the logits that a worker of `paced.py` has written for the same model."""
    return model.eval()(torch.arange(20, 40)[None]).logits
