"""The finished model: its files, its exports, and their verification."""

import json
import shutil
import subprocess
from itertools import count

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.run.attempts.verification import verify_run
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.compare import compare_runs
from elastane.run.observability.run_files import read_run

pytestmark = pytest.mark.processes

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastane

run = elastane.join()
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 8))
model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
inputs = torch.arange(256.0).reshape(32, 8) % 7
for step in run.steps(TensorDataset(inputs), global_batch=8, microbatch=2, until=12):
    for (batch,) in step:
        step.backward((model(batch) - batch).square().mean())
"""


@pytest.mark.long
@pytest.mark.early
def test_a_run_writes_its_model_and_exports_hold_the_same_tensors(stage, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--workers", "2", "--name", "whole", "--save-optimizer", "--max-shard-size", "1kB")
    command = [*stage.build_command("elastane.cli.main"), "run", *options, "train.py"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    directory = home / "runs" / "whole"
    assert str(directory / "model.safetensors.index.json") in ran.stdout
    weights = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    stored = {name: safetensors.torch.load_file(directory / file)[name] for name, file in weights.items()}
    assert len(set(weights.values())) > 1
    assert "12 of 12, 8 samples each" in (directory / "CARD.md").read_text()
    assert json.loads((directory / "metrics.json").read_text())["facts"]["outcome"] == "finished"
    assert json.loads((directory / "environment.json").read_text())["packages"]["torch"]
    for kind in ("torch", "dcp"):
        exported = CliRunner().invoke(app, ["export", "whole", "--format", kind, "--optimizer"])
        assert exported.exit_code == 0, exported.stderr
    read = torch.load(tmp_path / "whole-torch" / "model.pt", weights_only=True)
    assert read.keys() == stored.keys()
    assert all(torch.equal(read[name], stored[name]) for name in stored)
    assert (tmp_path / "whole-dcp" / ".metadata").is_file()
    refused = CliRunner().invoke(app, ["export", "whole", "--format", "hf"])
    assert refused.exit_code == 2
    assert "no config.json" in refused.stderr


@pytest.mark.parametrize("moment", ["before-writing-model", "between-moving-models-files"])
def test_any_worker_writes_the_same_files_of_the_model(stage, moment):
    options = {"save_optimizer": True, "max_shard_bytes": 20_000}
    reference = stage.play("--steps=8", **options)
    ended = stage.play("--steps=8", f"--fault=0:0:{moment}", start=2, **options)
    assert (reference.outcome.code, ended.outcome.code) == (0, 0), ended.describe()
    assert "worker 0" in ended.find_subjects("worker.died")
    files = sorted(path.name for path in reference.run.run_dir.root.glob("*.safetensors*"))
    assert len(files) > 3
    assert not [path for path in ended.run.run_dir.root.iterdir() if path.name.endswith(".partial")]
    for name in files:
        assert (reference.run.run_dir.root / name).read_bytes() == (
            ended.run.run_dir.root / name
        ).read_bytes()


@pytest.fixture(scope="module")
def written(stage):
    """Train eight steps and save the model in shards, with its optimizer."""
    ended = stage.play("--steps=8", save_optimizer=True, max_shard_bytes=20_000, digest_every=3)
    assert (ended.outcome.code, ended.verdict.problems, ended.verdict.remarks) == (0, (), ()), (
        ended.describe()
    )
    (event,) = ended.find_events("run.finished")
    assert ended.verdict.files == len(event.files) > 4
    return ended.run.run_dir


@pytest.fixture
def copied(written, tmp_path):
    """Return a function that copies the run, so that a test may change the copy."""
    copies = count()
    return lambda: RunDir(shutil.copytree(written.root, tmp_path / f"copy-{next(copies)}"))


def test_verification_finds_a_flipped_bit_or_a_missing_file_of_the_model(copied):
    names = [*sorted(path.name for path in copied().root.glob("*.safetensors*")), "environment.json"]
    for name in names:
        copy = copied()
        raw = bytearray((copy.root / name).read_bytes())
        raw[len(raw) // 2] ^= 16
        (copy.root / name).write_bytes(raw)
        assert [(p.kind, name in p.text) for p in verify_run(read_run(copy)).problems] == [("model", True)]
        (copy.root / name).unlink()
        assert [(p.kind, name in p.text) for p in verify_run(read_run(copy)).problems] == [("model", True)]


@pytest.mark.parametrize(
    ("step", "change", "kind"),
    [
        (2, lambda line: line | {"loss": line["loss"] * (1 + 2**-52)}, "loss"),
        (2, lambda line: line | {"loss": None}, "loss"),
        (3, lambda line: {name: value for name, value in line.items() if name != "digest"}, "digest"),
        (8, lambda line: {name: value for name, value in line.items() if name != "digest"}, "digest"),
        (6, lambda line: line | {"digest": line["digest"] | {"optimizer_blocks": []}}, "digest"),
        (4, lambda line: line | {"samples": line["samples"] | {"count": 1}}, "samples"),
        (4, lambda line: line | {"samples": line["samples"] | {"ended": True}}, "samples"),
        (5, lambda line: line | {"workers": {}}, "shares"),
        (5, lambda line: line | {"skipped": True}, "norm"),
    ],
)
def test_verification_finds_a_line_of_the_ledger_that_contradicts_itself(copied, step, change, kind):
    whole, tampered = read_run(copied()), copied()
    assert compare_runs(whole, read_run(copied())).equal
    lines = [json.loads(line) for line in tampered.ledger.read_text().splitlines()]
    lines[step - 1] = change(lines[step - 1])
    tampered.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert {(p.kind, p.step) for p in verify_run(read_run(tampered)).problems} >= {(kind, step)}
    if kind != "shares":  # the shares of two equal runs may differ
        assert not compare_runs(whole, read_run(tampered)).equal
