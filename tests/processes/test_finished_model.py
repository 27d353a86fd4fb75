"""A whole run by the command line, and its model as others read it, whoever wrote it."""

import json
import subprocess
import sys

import pytest
import safetensors.torch
import torch

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


def elastane(*args, cwd):
    command = [sys.executable, "-P", "-m", "elastane.cli.main", *map(str, args)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_a_run_and_its_exports(home, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--workers", "2", "--name", "whole", "--save-optimizer", "--max-shard-size", "1kB")
    ran = elastane("run", *options, "train.py", cwd=tmp_path)
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
        exported = elastane("export", "whole", "--format", kind, "--optimizer", cwd=tmp_path)
        assert exported.returncode == 0, exported.stderr
    read = torch.load(tmp_path / "whole-torch" / "model.pt", weights_only=True)
    assert read.keys() == stored.keys()
    assert all(torch.equal(read[name], stored[name]) for name in stored)
    assert (tmp_path / "whole-dcp" / ".metadata").is_file()
    refused = elastane("export", "whole", "--format", "hf", cwd=tmp_path)
    assert refused.returncode == 2
    assert "no config.json" in refused.stderr


@pytest.mark.parametrize("moment", ["before-writing-model", "between-moving-models-files"])
def test_the_set_is_the_same_whoever_writes_it(stage, moment):
    wishes = {"save_optimizer": True, "max_shard_bytes": 20_000}
    quiet = stage.play("--steps=8", **wishes)
    ended = stage.play("--steps=8", f"--fault=0:0:{moment}", start=2, **wishes)
    assert (quiet.over.code, ended.over.code) == (0, 0), ended.story()
    assert "worker 0" in ended.who("worker.died")
    files = sorted(path.name for path in quiet.run.run_dir.root.glob("*.safetensors*"))
    assert len(files) > 3
    assert not [path for path in ended.run.run_dir.root.iterdir() if path.name.endswith(".partial")]
    for name in files:
        assert (quiet.run.run_dir.root / name).read_bytes() == (ended.run.run_dir.root / name).read_bytes()
