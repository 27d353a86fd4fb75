"""Recipes as real runs: the loss falls, disturbances change no bit, and the result loads."""

import re
from functools import cache

import pytest
import torch

from elastane.integrations.recipes.recipe_files import format_recipe
from tests.lazy_modules import LazyModule
from tests.run.processes.attempts import Attempts
from tests.run.processes.stage import EndedRun
from tests.run.processes.ways import OPPOSITE_WAYS, pair_with_ways

from .rehearsed_runs import (
    PACED,
    assert_equal_runs,
    compute_logits,
    find_script,
    join_kill_and_drain,
    list_logits,
    make_small_recipe,
    play_recipe,
    read_files,
    release_all_steps,
)

peft = LazyModule("peft")
transformers = LazyModule("transformers")
pytestmark = pytest.mark.processes

FAMILIES = ("llama", "gpt-oss", "qwen3", "gpt")
LOSS_BEFORE, LOSS_AFTER = 5.9, 5.2
"""Nats per token: an untrained model of 400 tokens has 5.99."""
LEAST_DROP = 0.02
IN_BFLOAT16 = ("model.dtype=bfloat16",)


@pytest.fixture(scope="module")
def play_reference(stage, tmp_path_factory):
    """Return a function that trains an undisturbed run of a recipe, once for each of the catalog."""

    @cache
    def play(name: str, *changes: str) -> EndedRun:
        recipe = make_small_recipe(name, *changes)
        return play_recipe(stage, recipe, tmp_path_factory.mktemp(name), release_all_steps)

    return play


@pytest.mark.parametrize(("family", "way"), pair_with_ways(FAMILIES, OPPOSITE_WAYS))
def test_a_disturbed_run_of_each_family_has_the_same_bits_and_loads(
    stage, play_reference, tmp_path, family, way
):
    recipe, reference = make_small_recipe(f"{family}-tiny"), play_reference(f"{family}-tiny")
    first, *_, last = (line.loss for line in reference.run.ledger)
    assert first > LOSS_BEFORE
    assert last < LOSS_AFTER
    disturbed = play_recipe(stage, recipe, tmp_path, join_kill_and_drain, **way)
    assert disturbed.find_subjects("worker.died") == ["worker 0"], disturbed.describe()
    assert disturbed.find_events("worker.left"), disturbed.describe()
    assert_equal_runs(disturbed, reference)
    files = read_files(reference)
    assert {"artifacts/step-8/sample.txt", "artifacts/step-16/sample.txt"} <= files.keys()
    root = reference.run.run_dir.root
    assert len(transformers.AutoTokenizer.from_pretrained(root)) == recipe.data.vocabulary
    for logits in list_logits(disturbed):
        assert torch.equal(compute_logits(transformers.AutoModelForCausalLM.from_pretrained(root)), logits)


@pytest.mark.parametrize("changes", [(), IN_BFLOAT16], ids=["float32", "bfloat16"])
def test_a_killed_run_resumes_to_the_same_bits(stage, play_reference, tmp_path, changes):
    recipe, reference = make_small_recipe("llama-tiny", *changes), play_reference("llama-tiny", *changes)
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


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-tiny-chat", ()),
        ("llama-tiny-lora", ()),
        ("llama-tiny-dpo", ()),
        ("llama-tiny", IN_BFLOAT16),
        pytest.param("gpt-oss-tiny-chat", IN_BFLOAT16, marks=pytest.mark.long),
    ],
)
def test_a_disturbed_run_of_each_task_has_the_same_bits(stage, play_reference, tmp_path, name, changes):
    reference = play_reference(name, *changes)
    first, *_, last = (line.loss for line in reference.run.ledger)
    assert last < first - LEAST_DROP
    disturbed = play_recipe(stage, make_small_recipe(name, *changes), tmp_path, join_kill_and_drain)
    assert_equal_runs(disturbed, reference)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_finished_run_is_trained_further_through_an_adapter_that_peft_loads(
    stage, play_reference, tmp_path
):
    base = play_reference("llama-tiny").run.run_dir.root
    recipe = make_small_recipe("llama-tiny-lora", f"model.from={base}", "training.steps=4")
    assert recipe.data.tokenizer == str(base)
    ended = play_recipe(stage, recipe, tmp_path, release_all_steps)
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(ended.run.run_dir.root)
    (logits,) = list_logits(ended)
    assert torch.equal(compute_logits(loaded), logits)
    assert not torch.equal(compute_logits(transformers.AutoModelForCausalLM.from_pretrained(base)), logits)


def test_a_preference_run_prints_accuracy_and_margin(play_reference):
    *_, line = play_reference("llama-tiny-dpo").messages
    assert re.fullmatch(r"step 16: held-out loss [\d.]+, accuracy [\d.]+, margin -?[\d.]+", line)
