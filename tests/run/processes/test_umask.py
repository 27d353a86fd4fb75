"""Only their owner can write to the files that Elastane creates, under any umask."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import elastane

from .stage import SCRIPTS

pytestmark = pytest.mark.processes

SOURCES = Path(elastane.__file__).parents[1]


def run_elastane(umask: int, home: Path, *words: str) -> None:
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


def read_modes(folder: Path) -> dict[str, int]:
    """Return the modes of a folder and of all files in it; links have no mode of their own."""
    found = (path for path in (folder, *folder.rglob("*")) if not path.is_symlink())
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in found}


@pytest.mark.parametrize(
    ("umask", "closed"),
    [
        # The first is an oversight of some containers, the others are choices of users.
        (0o000, 0o022),
        pytest.param(0o002, 0o002, marks=pytest.mark.long),
        pytest.param(0o077, 0o077, marks=pytest.mark.long),
    ],
)
def test_files_of_a_run_follow_the_umask_and_are_never_writable_for_others(tmp_path, umask, closed) -> None:
    home = tmp_path / "home"
    options = ("--workers=1", "--name=closed", "--checkpoint-every=2 steps")
    run_elastane(umask, home, "run", *options, str(SCRIPTS / "smallest.py"))
    modes = read_modes(home)
    assert any(name.startswith("runs/closed/checkpoints/") for name in modes)
    assert {name: oct(mode) for name, mode in modes.items() if mode & closed} == {}
    assert modes["runs/closed/secret"] == 0o600


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_only_its_owner_can_read_the_home_of_a_controller(tmp_path, umask) -> None:
    home = tmp_path / "home"
    run_elastane(umask, home, "up", "--detach", "--listen=127.0.0.1:0", "--devices=1")
    run_elastane(umask, home, "down")
    assert home.stat().st_mode & 0o777 == 0o700
    assert {name: oct(mode) for name, mode in read_modes(home).items() if mode & 0o022} == {}
    secrets = ("cluster.json", "controller.db", "controller.log", "controller.json", "run-as.json")
    assert {read_modes(home)[name] for name in secrets} == {0o600}
