"""The wheel, installed into an empty environment extra by extra as a user does, and used."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from elastane.common.extras import Extra

ROOT = Path(__file__).parents[2]
WAIT_S = 900
CONSTRAINTS = ["--constraint", str(ROOT / "constraints.txt")]
NO_INDEX = ("Could not find a version", "No matching distribution", "NewConnectionError", "ConnectionError")

SCRIPT = """\
import elastane
import torch
from torch.utils.data import TensorDataset

run = elastane.join()
data = TensorDataset(torch.arange(64.0).reshape(32, 2), torch.arange(32.0))
model = torch.nn.Linear(2, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
for step in run.steps(data, global_batch=8, microbatch=4, until="5 steps"):
    for inputs, targets in step:
        step.backward(((model(inputs)[:, 0] - targets) ** 2).mean())
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(WAIT_S)]


def run(*command, check=True, **kwargs):
    done = subprocess.run(
        list(map(str, command)), check=False, capture_output=True, text=True, timeout=WAIT_S, **kwargs
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_pip(python, *arguments):
    """Run pip, or skip the test if no package index can be reached."""
    done = run(python, "-m", "pip", "--disable-pip-version-check", *arguments, check=False)
    if done.returncode and any(text in done.stderr for text in NO_INDEX):
        pytest.skip(f"no package index can be reached from here: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr


class Environment:
    """A virtual environment with nothing but the wheel, and a home of its own."""

    def __init__(self, where, wheel):
        run(sys.executable, "-m", "venv", where / "venv")
        self.python = where / "venv/bin/python"
        self.wheel = wheel
        self.where = where
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.variables = inherited | {"ELASTANE_HOME": str(where / "home"), "COLUMNS": "200"}

    def install(self, extra=""):
        run_pip(self.python, "install", *CONSTRAINTS, f"{self.wheel}[{extra}]" if extra else self.wheel)

    def run_elastane(self, *arguments, check=True):
        command = self.python.with_name("elastane"), *arguments
        return run(*command, check=check, cwd=self.where, env=self.variables)

    def check_extra(self, extra):
        return run(
            self.python,
            "-c",
            f"from elastane.common.extras import require; require({extra!r}, 'this test')",
            check=False,
            env=self.variables,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    where = tmp_path_factory.mktemp("wheel")
    run_pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", where, ROOT)
    [built] = where.glob("elastane-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    environment = Environment(tmp_path_factory.mktemp("environment"), wheel)
    environment.install()
    return environment


def test_the_wheel_trains_and_runs_a_cluster_after_its_extras_are_installed(environment):
    assert environment.run_elastane("--version").stdout.strip()
    assert set(get_args(Extra)) | {"examples", "dev", "docs"} == set(read_extras())
    for extra, command in (("torch", ("run", "train.py")), ("controller", ("up",))):
        (environment.where / "train.py").write_text(SCRIPT)
        refused = environment.run_elastane(*command, check=False)
        assert refused.returncode != 0
        assert f"pip install 'elastane[{extra}]'" in refused.stdout + refused.stderr
    for extra in get_args(Extra):
        environment.install(extra)
        installed = environment.check_extra(extra)
        assert installed.returncode == 0, f"{extra}: {installed.stderr}"
    environment.run_elastane("run", "--workers", "1", "--name", "first", "train.py")
    environment.run_elastane("verify", "first")
    environment.run_elastane("up", "--detach")
    try:
        environment.run_elastane("submit", "train.py", "--workers", "1", "--name", "second", "--wait")
        described = json.loads(environment.run_elastane("describe", "second", "--json").stdout)
        assert "finished" in json.dumps(described)
    finally:
        environment.run_elastane("down")


def read_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"]
