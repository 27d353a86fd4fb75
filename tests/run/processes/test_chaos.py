"""Joins, leaves, kills and hangs drawn from a seed, compared bit for bit with the reference run.

One of the events kills all processes at once; the run is resumed then.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(600)]

CHAOS = Path(__file__).parents[3] / "benchmarks" / "chaos.py"
EVENTS = 15


def test_fifteen_random_events_change_no_byte(first_seed):
    """The output of a failure names the command that repeats it."""
    command = [sys.executable, str(CHAOS), f"--seed={first_seed + 16}", f"--events={EVENTS}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum("after step" in line for line in done.stdout.splitlines()) == EVENTS
