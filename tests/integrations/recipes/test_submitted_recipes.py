"""A submitted recipe as a real job: it trains, is resized, and its result loads."""

import json
from pathlib import Path

import pytest
import torch

import elastane
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.integrations.recipes.resolution import list_preloaded, load_recipe
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_run
from tests.cluster.processes.small_cluster import open_cluster
from tests.waiting import wait_until

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
