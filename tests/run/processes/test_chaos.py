"""Joins, leaves, kills and hangs drawn from a seed, compared bit for bit with the reference run.

One of the events kills all processes at once; the run is resumed then.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.laggard import find_variables

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(600)]

CHAOS = Path(__file__).parents[3] / "benchmarks" / "chaos.py"
EVENTS = 15


@pytest.mark.parametrize("place", ["host", "laggard"])
def test_fifteen_random_events_change_no_byte(first_seed, place):
    """The output of a failure names the command that repeats it."""
    command = [sys.executable, str(CHAOS), f"--seed={first_seed + 16}", f"--events={EVENTS}"]
    environment = os.environ | (find_variables(first_seed) if place == "laggard" else {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum("after step" in line for line in done.stdout.splitlines()) == EVENTS
