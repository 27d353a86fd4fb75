"""Nobody but their owner writes to the files that Elastane makes, whatever the umask."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import elastane

pytestmark = pytest.mark.processes

SOURCES = Path(elastane.__file__).parents[1]
SCRIPT = """
import torch
from torch import nn
import elastane

run = elastane.join()
model = nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = torch.utils.data.TensorDataset(torch.ones(32, 4), torch.ones(32, 1))
for step in run.steps(data, global_batch=8, microbatch=2, until=6):
    for x, y in step:
        step.backward(nn.functional.mse_loss(model(x), y))
"""


def elastane_with(umask: int, home: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "elastane", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        umask=umask,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCES), "ELASTANE_HOME": str(home)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def modes_in(folder: Path) -> dict[str, int]:
    """The modes of a folder and all in it, but links, which have none of their own."""
    found = (path for path in (folder, *folder.rglob("*")) if not path.is_symlink())
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in found}


@pytest.mark.parametrize(
    ("umask", "closed"),
    [
        # An oversight of a container; what a user chose; what a user chose.
        (0o000, 0o022),
        (0o002, 0o002),
        (0o077, 0o077),
    ],
)
def test_a_run_is_as_closed_as_its_umask_says_and_never_open_to_everybody(tmp_path, umask, closed) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    home = tmp_path / "home"
    options = ("--workers=1", "--name=closed", "--checkpoint-every=2 steps")
    elastane_with(umask, home, "run", *options, str(script))
    modes = modes_in(home)
    assert any(name.startswith("runs/closed/checkpoints/") for name in modes)
    assert {name: oct(mode) for name, mode in modes.items() if mode & closed} == {}
    assert modes["runs/closed/secret"] == 0o600


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_controllers_home_is_its_owners_alone(tmp_path, umask) -> None:
    home = tmp_path / "home"
    elastane_with(umask, home, "up", "--detach", "--listen=127.0.0.1:0", "--devices=1")
    elastane_with(umask, home, "down")
    assert home.stat().st_mode & 0o777 == 0o700
    assert {name: oct(mode) for name, mode in modes_in(home).items() if mode & 0o022} == {}
    secrets = ("cluster.json", "controller.db", "controller.log", "controller.json", "run-as.json")
    assert {modes_in(home)[name] for name in secrets} == {0o600}
