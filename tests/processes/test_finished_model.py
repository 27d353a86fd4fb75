"""A whole run by the command line, and its model as others read it, whoever wrote it."""

import json
import shutil
import subprocess
import sys
from itertools import count

import pytest
import safetensors.torch
import torch

from elastane.api.rundir import RunDir
from elastane.attempts.verification import verify_run
from elastane.observability.compare import compare_runs
from elastane.observability.run_files import read_run

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


@pytest.fixture(scope="module")
def written(stage):
    """A run of eight steps, in shards and with its optimizer."""
    ended = stage.play("--steps=8", save_optimizer=True, max_shard_bytes=20_000, digest_every=3)
    assert (ended.over.code, ended.verdict.problems, ended.verdict.remarks) == (0, (), ()), ended.story()
    (event,) = ended.events("run.finished")
    assert ended.verdict.files == len(event.files) > 4
    return ended.run.run_dir


@pytest.fixture
def copied(written, tmp_path):
    """A function that copies the run, to be tampered with."""
    copies = count()
    return lambda: RunDir(shutil.copytree(written.root, tmp_path / f"copy-{next(copies)}"))


def test_a_flipped_bit_or_a_missing_file_of_the_model_is_noticed(copied):
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
def test_a_line_that_contradicts_itself_is_noticed(copied, step, change, kind):
    whole, tampered = read_run(copied()), copied()
    assert compare_runs(whole, read_run(copied())).equal
    lines = [json.loads(line) for line in tampered.ledger.read_text().splitlines()]
    lines[step - 1] = change(lines[step - 1])
    tampered.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert {(p.kind, p.step) for p in verify_run(read_run(tampered)).problems} >= {(kind, step)}
    if kind != "shares":  # who computed what may differ between two runs
        assert not compare_runs(whole, read_run(tampered)).equal
