"""The real controller is killed again and again while jobs come and go, as `controller_kills` describes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# On a machine that is busy with other things, a controller takes its time to start.
pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(900)]

KILLS, AGENT_KILLS = 24, 20
SCRIPT = Path(__file__).with_name("controller_kills.py")


def test_a_killed_controller_loses_no_job_starts_none_twice_and_leaks_no_device(store_url):
    seed = int.from_bytes(os.urandom(4), "little")
    # With one of the databases, real training runs meanwhile.
    training = 1 if store_url.startswith("sqlite") else 0
    options = (f"--kills={KILLS}", f"--seed={seed}", f"--training={training}", f"--store={store_url}")
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False, timeout=880
    )
    assert ended.returncode == 0, f"make crash KILLS={KILLS} SEED={seed}\n{ended.stdout}\n{ended.stderr}"


def test_a_killed_controller_loses_doubles_and_leaves_behind_no_agent():
    """The engine is that for Ray, with a small Ray; see `agent_kills`."""
    options = (f"--kills={AGENT_KILLS}", f"--seed={int.from_bytes(os.urandom(4), 'little')}")
    command = [sys.executable, str(SCRIPT.with_name("agent_kills.py")), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=880)
    assert ended.returncode == 0, f"{' '.join(command)}\n{ended.stdout}\n{ended.stderr}"
