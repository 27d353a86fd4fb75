"""The commands for checkpoints, on a real run: request, restore in a rehearsal, export."""

import asyncio
import json

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.run.nouns.spec import CheckpointPolicy

pytestmark = pytest.mark.processes

ONLY_REQUESTED = CheckpointPolicy(keep_last=9)


def run_elastane(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def requested(stage):
    """Return a run with a checkpoint that a user requested in mid-run, and the answer to the request."""
    answers = []

    async def disturb(run):
        await run.wait_for_step(10)
        waiting = asyncio.create_task(
            asyncio.to_thread(run_elastane, "checkpoint", "now", run.run_dir.root, "--wait", "--json")
        )
        await run.step_until(lambda _: waiting.done())
        answers.append(waiting.result())
        run.stop_pacing()

    ended = stage.play(
        "--paced-from=11", "--steps=150", disturb=disturb, start=2, digest_every=1, checkpoints=ONLY_REQUESTED
    )
    return ended, json.loads(answers[0].stdout)


def test_checkpoint_now_waits_until_the_checkpoint_is_complete(requested):
    ended, answer = requested
    assert ended.outcome.code == 0, ended.describe()
    assert answer["ok"]
    assert answer["step"] >= 10
    requested_one, last = json.loads(
        run_elastane("checkpoint", "list", ended.run.run_dir.root, "--json").stdout
    )
    assert (requested_one["name"], requested_one["step"], requested_one["state"]) == (
        answer["name"],
        answer["step"],
        "complete",
    )
    assert last["step"] == 150


@pytest.mark.parametrize("workers", [1, 3])
def test_a_rehearsal_finds_the_digest_of_the_ledger_and_changes_no_file(requested, workers):
    ended, answer = requested
    root = ended.run.run_dir.root
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    result = run_elastane("verify", "--restore", root, answer["step"], "--workers", workers, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["ok"], found["digest"], found["workers"]) == (True, "equal", workers)
    assert found["restored_bytes"] > 0
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.long
def test_the_last_checkpoint_has_the_finished_model_and_its_optimizer(requested, tmp_path):
    ended, answer = requested
    root = ended.run.run_dir.root
    exported = run_elastane(
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
    refused = run_elastane(
        "checkpoint", "export", root, answer["step"], "--format", "hf", "--out", tmp_path / "hf"
    )
    assert refused.exit_code == 2
    assert "no config.json" in refused.stderr
