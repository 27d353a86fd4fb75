"""The trained bytes do not depend on the number of workers, nor on how workers keep and move state."""

import os
import subprocess
import sys

import pytest

from elastane.run.protocol.spot_checks import FIRST_STEPS
from tests.waiting import WAIT_S

from .stage import SCRIPTS
from .ways import pair_with_ways

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("workers", "way"), pair_with_ways([1, 2, 3, 8, 4, 6]))
def test_the_bytes_are_the_same_for_any_number_of_workers(stage, assert_equals_reference, workers, way):
    ended = stage.play(start=workers, **way)
    assert_equals_reference(ended)
    assert set(ended.get_shares(30)) == set(range(workers))
    assert ended.messages[0] == "evaluated 27.0 52.0"
    # Each worker computes three microbatches before the run begins, and spot checks some once more.
    checks = sum(line.agreed for line in ended.run.ledger)
    assert checks == (0 if workers == 1 else min(FIRST_STEPS, 8 // workers))
    computed = sum(sum(ranks.values()) for ranks in ended.assignments.values())
    assert computed == 30 * 8 + 3 * workers + checks, f"{ended.assignments}\n{ended.describe()}"


def test_plain_python_trains_to_the_same_bytes(play_reference):
    """The script trains in its own process, without the command line and the warm process."""
    command = [sys.executable, str(SCRIPTS / "training.py")]
    printed = subprocess.run(
        command, env=os.environ, check=True, capture_output=True, text=True, timeout=WAIT_S
    )
    assert printed.stdout.splitlines() == play_reference(30).messages


def test_fast_convergence_learns_too_and_its_ledger_is_sound(stage, play_reference):
    ended = stage.play(start=3, convergence="fast")
    assert ended.outcome.code == 0, ended.describe()
    assert ended.verdict.problems == ()
    assert ended.run.ledger[-1].loss == pytest.approx(play_reference(30).run.ledger[-1].loss, abs=0.1)
