"""``elastane recipe``: what its commands print, write and refuse."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.cli.recipes.training import choose_sizes, complete_options
from elastane.cli.runs.run_options import RunOptions
from elastane.common.documents import read_yaml
from elastane.integrations.recipes.recipe_files import list_recipes, read_recipe
from elastane.integrations.recipes.resolution import load_recipe

OWN = """
description: My own model.
extends: llama-tiny
model: {config: {num_hidden_layers: 1}}
data: {vocabulary: 300}
batch: {size: 4, microbatch: 2, context: 16}
training: {steps: 4, warmup_steps: 1}
evaluation: {every: 0, samples: 2, sample_tokens: 4}
workers: {min: 1, max: 2}
"""

COMMIT = "0" * 40


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    (tmp_path / "own.yaml").write_text(OWN)
    return tmp_path


def invoke(*words: str):
    return CliRunner().invoke(app, ["recipe", *words])


def test_the_list_has_every_recipe_with_its_task(folder):
    listed = json.loads(invoke("list", "--json").stdout)
    assert [one["name"] for one in listed] == list(list_recipes())
    assert {one["task"] for one in listed} == {"pretrain", "finetune", "preference"}
    assert all(one["description"].endswith(".") for one in listed)
    page = invoke("list").stdout
    assert "llama-tiny-dpo" in page
    assert (
        page.splitlines()[-1] == "A recipe of your own is named by its path: elastane recipe run ./own.yaml"
    )
    assert invoke("show", "./own.yaml").exit_code == 0


def test_show_prints_every_field_and_a_recipe_reads_it_back(folder):
    shown = invoke("show", "own.yaml", "--set", "training.steps=7").stdout
    assert read_yaml(shown)["training"]["steps"] == 7
    (folder / "copy.yaml").write_text(shown)
    assert read_recipe("copy.yaml") == load_recipe("own.yaml", ["training.steps=7"], folder)


def test_eject_writes_the_script_and_the_recipe_and_overwrites_nothing(folder):
    ejected = invoke("eject", "own.yaml", "mine")
    assert ejected.exit_code == 0, ejected.stderr
    assert "elastane run mine/train.py\n" in ejected.stdout
    assert read_recipe("mine/recipe.yaml").training.steps == 4
    assert "run.prepare(" in (folder / "mine" / "train.py").read_text()
    (folder / "mine" / "recipe.yaml").unlink()
    again = invoke("eject", "own.yaml", "mine")
    assert again.exit_code == 2
    assert "mine/train.py exists already" in again.stderr
    assert not (folder / "mine" / "recipe.yaml").exists()


def test_a_submitted_recipe_is_a_job_that_contains_it(folder):
    submitted = invoke("submit", "own.yaml", "--dry-run", "--set", "workers.sizes=[1, 2]", "--seed", "3")
    assert submitted.exit_code == 0, submitted.stderr
    job = read_yaml(submitted.stdout)
    assert job["module"] == "elastane.integrations.recipes.scripts.train"
    assert job["elasticPolicy"] == {"maxReplicas": 2, "replicaDiscreteValues": [1, 2]}
    assert job["training"]["seed"] == 3
    (inline,) = job["args"]
    assert read_recipe(inline) == load_recipe("own.yaml", ["workers.sizes=[1, 2]"], folder)


def test_the_processes_of_a_recipe_are_those_of_its_run_and_its_job(folder):
    typed = ("--set", "workers.processes=2", "--set", "workers.max=1")
    submitted = invoke("submit", "own.yaml", "-n", *typed)
    assert submitted.exit_code == 0, submitted.stderr
    job = read_yaml(submitted.stdout)
    (inline,) = job["args"]
    assert (job["processes"], read_recipe(inline).workers.processes) == (2, 2)
    recipe = load_recipe("llama-tiny", ["workers.processes=2"], folder)
    assert complete_options(RunOptions(), recipe, "name").processes == 2


def test_the_typed_number_of_workers_replaces_that_of_the_recipe(folder):
    submitted = invoke("submit", "own.yaml", "-n", "--set", "workers.sizes=[1, 2]", "--workers", "2")
    assert read_yaml(submitted.stdout)["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 2}


@pytest.mark.parametrize(
    ("typed", "limits", "sizes"),
    [
        ({}, "2:4", (2, 4)),
        ({"workers": "1:3"}, "1:3", ()),
        ({"debug": True}, "2:4", ()),
    ],
)
def test_a_run_has_the_legal_sizes_of_its_recipe_unless_workers_are_typed(folder, typed, limits, sizes):
    options = RunOptions(**typed)
    recipe = load_recipe("llama-tiny", ["workers.sizes=[2, 4]"], folder)
    assert complete_options(options, recipe, "name").workers == limits
    assert choose_sizes(options, recipe) == sizes


def test_a_run_does_not_start_with_another_size_than_the_legal_ones(folder):
    before = sorted(folder.rglob("*"))
    refused = invoke("run", "llama-tiny", "--set", "workers.sizes=[2, 4]", "--start", "3")
    assert refused.exit_code == 2
    assert "--start 3 is not one of workers.sizes: 2, 4" in refused.stderr
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "what", "do"),
    [
        (["lama-tiny"], "there is no recipe lama-tiny", "did you mean llama-tiny?"),
        (["missing.yaml"], "cannot read the recipe", "check the path"),
        (
            ["own.yaml", "--set", "training.step=9"],
            "--set training.step: a recipe has no such field",
            "write steps",
        ),
        (
            ["own.yaml", "--set", "training.steps"],
            "'training.steps' is not KEY=VALUE",
            "--set training.steps=200",
        ),
        (
            ["own.yaml", "--set", "batch.size=5"],
            "batch.microbatch: 2 does not divide batch.size",
            "such as 1",
        ),
        (
            ["own.yaml", "--set", "batch.context=300"],
            "300 is longer than the 256 positions",
            "write up to 256",
        ),
        (["own.yaml", "--set", "data.tokenizer=gone"], "data.tokenizer: no such folder", "tokenizer.json"),
        (["own.yaml", "--set", "data.path=gone.txt"], "data.path: no such file", "correct the path"),
        (["own.yaml", "--set", "model.from=./gone"], "model.from: no such folder", "correct the path"),
        (["own.yaml", "--set", "model.config.hiden_size=8"], "no such field", "write hidden_size"),
        (["own.yaml", "--set", "xyzzy=1"], "no such field", "look for its name in elastane recipe show NAME"),
        (
            ["own.yaml", "--set", "workers.max=3"],
            "workers.max: 3 is more than the 2 microbatches",
            "write up to 2",
        ),
        (["own.yaml", "--set", "checkpoints.every=soon"], "checkpoints.every:", "10min"),
        (["llama-3.1-8b"], "data.tokenizer: is empty", "--set data.tokenizer=FOLDER"),
    ],
)
@pytest.mark.parametrize("command", ["run", "submit", "eject"])
def test_a_mistake_is_refused_before_anything_is_written(folder, command, words, what, do):
    before = sorted(folder.rglob("*"))
    refused = invoke(command, *words)
    assert refused.exit_code == 2
    assert what in " ".join(refused.stderr.split())
    assert do in " ".join(refused.stderr.split())
    assert sorted(folder.rglob("*")) == before


@pytest.fixture
def no_downloads(monkeypatch):
    for function in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(f"huggingface_hub.{function}", lambda *_, **__: pytest.fail("downloaded"))


@pytest.mark.parametrize("source", ["meta-llama/Llama-3.1-8B", "org/model"])
def test_an_ejected_recipe_names_its_model_of_the_hub_and_downloads_nothing(folder, no_downloads, source):
    ejected = invoke("eject", "llama-3.1-8b-lora", "mine", "--set", f"model.from={source}")
    assert ejected.exit_code == 0, ejected.output
    written = read_recipe("mine/recipe.yaml")
    assert (written.model.source, written.model.config, written.data.tokenizer) == (source, {}, "")


def test_a_job_of_a_dry_run_names_its_model_of_the_hub_and_downloads_nothing(folder, no_downloads):
    submitted = invoke("submit", "llama-3.1-8b-lora", "--dry-run")
    assert submitted.exit_code == 0, submitted.output
    (inline,) = read_yaml(submitted.stdout)["args"]
    assert read_recipe(inline).model.source == "meta-llama/Llama-3.1-8B"


@pytest.mark.long
@pytest.mark.processes
def test_an_ejected_script_finds_its_model_by_its_name_and_trains_the_same_bytes(
    home, tmp_path, monkeypatch, tokenizer
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN)
    # The cache of the hub, as after a download.
    snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / COMMIT
    write_tiny_model(tokenizer, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # A warm process of the tests has read the settings of the hub before this test.
    elastane, source = [sys.executable, "-m", "elastane"], ("--set", "model.from=org/model")
    run_command([*elastane, "recipe", "run", "own.yaml", "--name", "of-the-hub", "--seed", "5", *source])
    run_command([*elastane, "recipe", "eject", "own.yaml", "mine", *source])
    assert read_recipe("mine/recipe.yaml").model.source == "org/model"
    options = ("--name", "ejected-from-it", "--seed", "5", "--workers", "1")
    run_command([*elastane, "run", *options, "mine/train.py", str(tmp_path / "mine" / "recipe.yaml")])
    whole, ejected = home / "runs" / "of-the-hub", home / "runs" / "ejected-from-it"
    assert read_recipe(str(whole / "recipe.yaml")).model.source == str(snapshot)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (whole / name).read_bytes() == (ejected / name).read_bytes()
    assert (whole / "model.safetensors").read_bytes() != (snapshot / "model.safetensors").read_bytes()


def write_tiny_model(tokenizer, folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    config = AutoConfig.for_model("llama", vocab_size=len(tokenizer), **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.long
@pytest.mark.processes
def test_an_ejected_recipe_trains_the_same_bytes(stage, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN)
    elastane = stage.build_command("elastane.cli.main")
    run_command([*elastane, "recipe", "run", "own.yaml", "--name", "from-recipe", "--seed", "5"])
    run_command([*elastane, "recipe", "eject", "own.yaml", "mine"])
    options = ("--name", "ejected", "--seed", "5", "--workers", "1")
    run_command([*elastane, "run", *options, "mine/train.py"])
    whole, ejected = home / "runs" / "from-recipe", home / "runs" / "ejected"
    for name in ("model.safetensors", "tokenizer.json", "config.json", "artifacts/step-4/sample.txt"):
        assert (whole / name).read_bytes() == (ejected / name).read_bytes()
    assert (whole / "recipe.yaml").read_text() == Path("mine/recipe.yaml").read_text()
    # A checkpoint has the tokenizer, too.
    run_command([*elastane, "checkpoint", "export", "ejected", "--format", "hf", "--out", "exported"])
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "exported" / name).read_bytes() == (ejected / name).read_bytes()


def run_command(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return ran.stdout
