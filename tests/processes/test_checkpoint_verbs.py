"""The user's side of checkpoints, on a real run: asked for, rehearsed, exported."""

import asyncio
import json

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

from elastane.api.spec import CheckpointPolicy
from elastane.cli.main import app

pytestmark = pytest.mark.processes

ONLY_ASKED = CheckpointPolicy(keep_last=9)


def elastane(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def kept(stage):
    """A run that was asked for a checkpoint in its middle, and what it answered."""
    said = []

    async def ask(running):
        await running.until_step(10)
        waiting = asyncio.create_task(
            asyncio.to_thread(elastane, "checkpoint", "now", running.run_dir.root, "--wait", "--json")
        )
        await running.pace(lambda _: waiting.done())
        said.append(waiting.result())
        running.go()

    ended = stage.play(
        "--paced-from=11", "--steps=150", story=ask, start=2, digest_every=1, checkpoints=ONLY_ASKED
    )
    return ended, json.loads(said[0].stdout)


def test_now_waits_until_the_state_is_kept(kept):
    ended, said = kept
    assert ended.over.code == 0, ended.story()
    assert said["ok"]
    assert said["step"] >= 10
    asked_for, last = json.loads(elastane("checkpoint", "list", ended.run.run_dir.root, "--json").stdout)
    assert (asked_for["name"], asked_for["step"], asked_for["state"]) == (
        said["name"],
        said["step"],
        "complete",
    )
    assert last["step"] == 150


@pytest.mark.parametrize("workers", [1, 3])
def test_a_rehearsal_finds_the_digest_of_the_ledger_and_touches_nothing(kept, workers):
    ended, said = kept
    root = ended.run.run_dir.root
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    result = elastane("verify", "--restore", root, said["step"], "--workers", workers, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["ok"], found["digest"], found["workers"]) == (True, "equal", workers)
    assert found["restored_bytes"] > 0
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_the_last_checkpoint_has_the_finished_model_and_its_optimizer(kept, tmp_path):
    ended, said = kept
    root = ended.run.run_dir.root
    exported = elastane(
        "checkpoint", "export", root, "--format", "torch", "--optimizer", "--out", tmp_path / "last"
    )
    assert exported.exit_code == 0, exported.stderr
    weights = torch.load(tmp_path / "last" / "model.pt", weights_only=True)
    finished = safetensors.torch.load_file(ended.run.run_dir.model_files.weights)
    assert weights.keys() == finished.keys()
    assert all(torch.equal(weights[name], finished[name]) for name in finished)
    optimizer = torch.load(tmp_path / "last" / "optimizer.pt", weights_only=True)
    assert {int(some["step"]) for some in optimizer["state"].values()} == {150}
    assert [len(group["params"]) for group in optimizer["param_groups"]] == [5, 2]
    refused = elastane("checkpoint", "export", root, said["step"], "--format", "hf", "--out", tmp_path / "hf")
    assert refused.exit_code == 2
    assert "no config.json" in refused.stderr
