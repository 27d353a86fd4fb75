"""A submitted recipe as a real job: it trains, is resized, and its result loads."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import elastane
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.common.user_cache import find_cache
from elastane.integrations.recipes.resolution import list_preloaded, load_recipe
from elastane.integrations.recipes.stored_model import fetch_model
from elastane.run.checkpoints.storage.copies import upload_files
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_run
from tests.cluster.processes.process_engine import AgentProcesses, ProcessEngine
from tests.cluster.processes.small_cluster import open_cluster
from tests.object_store import serve_object_store
from tests.waiting import wait_until

from .test_recipe_commands import write_tiny_model

pytestmark = [pytest.mark.processes, pytest.mark.early]

STEPS = 300
SMALL = (
    "model.config.num_hidden_layers=1",
    "model.config.hidden_size=32",
    "model.config.intermediate_size=64",
    "data.vocabulary=400",
    "batch.size=4",
    "batch.context=32",
    "evaluation.every=0",
    "evaluation.samples=4",
    f"training.steps={STEPS}",
)


@pytest.mark.long
def test_a_submitted_recipe_trains_on_a_cluster_follows_new_limits_and_loads(stage, tmp_path, monkeypatch):
    name, changes = "llama-tiny", [word for change in SMALL for word in ("--set", change)]
    preloaded = list_preloaded(load_recipe(name, (), Path.cwd()))
    stage.preload(*preloaded)
    with open_cluster(stage, tmp_path, monkeypatch) as run_elastane:
        # The package may not be installed, so the job needs its path.
        path = f"PYTHONPATH={Path(elastane.__file__).parents[1]}"
        run_elastane("recipe", "submit", name, "--name", "job", "--workers", "1", "--env", path, *changes)
        directory = EngineDirectories(tmp_path / "home").get_run_dir("job")
        wait_until(lambda: find_trained_sizes(directory) == {1}, "one worker trains")
        run_elastane("scale", "job", "2")
        wait_until(lambda: find_state(run_elastane) == "finished", "the job has finished")
    assert find_trained_sizes(directory) == {1, 2}
    run = read_run(directory)
    assert run.record.spec.preload == preloaded
    assert len(run.ledger) == STEPS
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory.root)
    model = AutoModelForCausalLM.from_pretrained(directory.root)
    with torch.no_grad():
        logits = model(**tokenizer("import ", return_tensors="pt")).logits
    assert logits.shape[-1] == len(tokenizer)
    assert torch.isfinite(logits).all()


def find_state(run_elastane) -> str:
    described = json.loads(run_elastane("describe", "job", "--json").stdout)
    assert described["state"] != "failed", described
    return described["state"]


def find_trained_sizes(directory: RunDir) -> set[int]:
    """Return the numbers of workers that have committed steps of a run."""
    ledger = read_run(directory).ledger if directory.run.exists() else ()
    return {len(line.workers) for line in ledger}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_recipe_trains_on_machines_that_share_nothing_but_a_store(stage, tmp_path, monkeypatch, tokenizer):
    changes = [word for change in (*SMALL, "model.from=s3://store/base") for word in ("--set", change)]
    engine = AgentProcesses(stage.build_command("elastane.cli.main"), tmp_path / "agents", own_homes=True)
    with serve_object_store(monkeypatch, "store"):
        store_model("s3://store/base", tokenizer, tmp_path / "base")
        try:
            with open_cluster(
                stage,
                tmp_path,
                monkeypatch,
                open_engine=lambda cluster: ProcessEngine(engine, cluster),
                engine_options={"home": "own"},
            ) as run_elastane:
                path = f"PYTHONPATH={Path(elastane.__file__).parents[1]}"
                engine.is_silent = True
                run_elastane(
                    *("recipe", "submit", "llama-tiny", "--name", "job", "--workers", "2", *changes),
                    *("--checkpoint-dir", "s3://store/job", "--env", path),
                )
                # Agents have another cache than the machine from which the job was submitted.
                shutil.rmtree(find_cache("models"))
                engine.is_silent = False
                wait_until(lambda: find_state(run_elastane) == "finished", "the job has finished")
                directory = EngineDirectories(tmp_path / "home").get_run_dir("job")
                to_hub_format = ("--format", "hf", "--out")
                run_elastane("export", directory.root, *to_hub_format, "s3://store/tuned")
                run_elastane("checkpoint", "export", "s3://store/job", *to_hub_format, "s3://store/again")
        finally:
            engine.end()
        assert len(read_run(directory).ledger) == STEPS
        tuned = fetch_model("s3://store/tuned", "") / "model.safetensors"
        assert tuned.read_bytes() == (directory.root / "model.safetensors").read_bytes()
        assert tuned.read_bytes() != (tmp_path / "base" / "model.safetensors").read_bytes()
        assert (fetch_model("s3://store/again", "") / tuned.name).read_bytes() == tuned.read_bytes()


def store_model(url: str, tokenizer, folder: Path) -> None:
    """Write a small Llama with random weights and its tokenizer to a store."""
    write_tiny_model(tokenizer, folder)
    upload_files(LocalStorage(folder), [path.name for path in folder.iterdir()], open_storage(url))
