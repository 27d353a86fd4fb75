"""Every family and task trains for hundreds of steps on real text, is disturbed in every way, and loads."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from elastane.cli.main import app
from tests.run.processes.attempts import Attempts

from .rehearsed_runs import (
    DIGEST_EVERY,
    DisturbedSteps,
    assert_equals_undisturbed,
    compute_logits,
    disturb_run,
    find_held_out_loss,
    list_logits,
    make_long_recipe,
    play_recipe,
    release_all_steps,
)

pytestmark = [pytest.mark.processes, pytest.mark.long]

STEPS = 200
DISTURBED = DisturbedSteps(checkpoint_every=50, grown=60, killed=80, drained=95, ended=115)

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
    recipe = make_long_recipe(f"{family}-tiny{task}", STEPS, "training.warmup_steps=10")
    reference = play_recipe(
        stage, recipe, tmp_path / "undisturbed", release_all_steps, digest_every=DIGEST_EVERY
    )
    assert find_held_out_loss(reference) < HELD_OUT_LOSS[task]
    with Attempts(stage, tmp_path) as attempts:
        disturb_run(attempts, recipe, tmp_path, DISTURBED)
        ended = attempts.wait_for_end()
    assert_equals_undisturbed(ended, reference)
    (logits,) = list_logits(ended)
    loaded = load_result(ended.run.run_dir.root, tmp_path / "exported")
    assert torch.equal(compute_logits(loaded), logits)


def load_result(root: Path, exported: Path):
    """Load the model of a run; an adapter is exported with its base, which has random weights and no name."""
    from transformers import AutoModelForCausalLM

    if not (root / "adapter_config.json").exists():
        return AutoModelForCausalLM.from_pretrained(root)
    result = CliRunner().invoke(app, ["export", str(root), "--format", "hf", "--out", str(exported)])
    assert result.exit_code == 0, result.output
    return AutoModelForCausalLM.from_pretrained(exported)
