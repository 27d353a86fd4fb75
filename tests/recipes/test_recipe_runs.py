"""Recipes as real runs: the loss falls, disturbances change no bit, and the result loads."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from elastane.recipes.recipe_files import format_recipe
from tests.processes.attempts import Attempts
from tests.processes.stage import EndedRun

from .rehearsed_runs import (
    PACED,
    assert_equal_runs,
    find_script,
    join_kill_and_drain,
    make_small_recipe,
    play_recipe,
    read_files,
    release_all_steps,
)

pytestmark = pytest.mark.processes

FAMILIES = ("llama", "gpt-oss", "qwen3", "gpt")
LOSS_BEFORE, LOSS_AFTER = 5.9, 5.2
"""Nats per token: an untrained model of 400 tokens has 5.99."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_disturbed_run_of_each_family_has_the_same_bits_and_loads(stage, tmp_path, family):
    recipe = make_small_recipe(f"{family}-tiny")
    reference = play_recipe(stage, recipe, tmp_path, release_all_steps)
    first, *_, last = (line.loss for line in reference.run.ledger)
    assert first > LOSS_BEFORE
    assert last < LOSS_AFTER
    disturbed = play_recipe(stage, recipe, tmp_path, join_kill_and_drain)
    assert disturbed.find_subjects("worker.died") == ["worker 0"], disturbed.describe()
    assert disturbed.find_events("worker.left"), disturbed.describe()
    assert_equal_runs(disturbed, reference)
    files = read_files(reference)
    assert {"artifacts/step-8/sample.txt", "artifacts/step-16/sample.txt"} <= files.keys()
    root = reference.run.run_dir.root
    assert len(AutoTokenizer.from_pretrained(root)) == recipe.data.vocabulary
    for logits in list_logits(disturbed):
        assert torch.equal(compute_logits(AutoModelForCausalLM.from_pretrained(root)), logits)


@torch.no_grad()
def compute_logits(model) -> torch.Tensor:
    """Return the logits that a worker of `paced.py` has written for the same model."""
    return model.eval()(torch.arange(20, 40)[None]).logits


def list_logits(ended: EndedRun) -> list[torch.Tensor]:
    return [torch.load(path) for path in sorted(ended.run.run_dir.root.glob("logits-*.pt"))]


def test_a_killed_run_resumes_to_the_same_bits(stage, tmp_path):
    recipe = make_small_recipe("llama-tiny")
    reference = play_recipe(stage, recipe, tmp_path / "reference", release_all_steps)
    file = tmp_path / "recipe.yaml"
    file.write_text(format_recipe(recipe))
    with Attempts(stage, tmp_path) as attempts:
        options = ("--start=2", "--checkpoint-every=4 steps", "--digest-every=1")
        attempts.begin(*options, script=str(PACED), args=(str(find_script(recipe)), str(file)), sized=False)
        attempts.wait_for_step(2)
        for step in range(3, 7):
            attempts.touch(f"gate-{step}")
        attempts.wait_for_event("checkpoint.saved")
        attempts.kill_everything()
        attempts.touch("gates")
        attempts.resume("--start=1", "--copies=2")
        ended = attempts.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    (resumed,) = ended.find_events("run.resumed")
    assert resumed.step >= 4
    assert ended.losses == reference.losses
    assert ended.digests == reference.digests
    assert read_files(ended) == read_files(reference)


@pytest.mark.parametrize("task", ["chat", "lora", "dpo"])
def test_a_disturbed_run_of_each_task_has_the_same_bits(stage, tmp_path, task):
    recipe = make_small_recipe(f"llama-tiny-{task}")
    reference = play_recipe(stage, recipe, tmp_path, release_all_steps)
    disturbed = play_recipe(stage, recipe, tmp_path, join_kill_and_drain)
    assert_equal_runs(disturbed, reference)
