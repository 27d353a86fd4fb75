"""Jobs under a real Slurm while controllers are killed or away, see `slurm_kills` and `slurm_outage`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.engines.slurm_daemons import SlurmNotInstalled, check_installed
from tests.run.processes.skipping import skip_except_in_ci

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(900)]

KILLS, AWAY_S = 20, 40
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def installed():
    try:
        check_installed()
    except SlurmNotInstalled as error:
        skip_except_in_ci(str(error))


def run_script(*words: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(HERE / words[0]), *words[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=880,
    )
    assert ended.returncode == 0, f"{' '.join(words)}\n{ended.stdout}\n{ended.stderr}"


def test_a_killed_controller_loses_doubles_and_leaves_no_agent_and_trains_the_same_bytes():
    seed = int.from_bytes(os.urandom(4), "little")
    run_script("slurm_kills.py", f"--kills={KILLS}", f"--seed={seed}")


def test_no_step_pauses_while_the_controller_and_that_of_slurm_are_away_and_nothing_is_lost():
    run_script("slurm_outage.py", f"--seconds={AWAY_S}")
