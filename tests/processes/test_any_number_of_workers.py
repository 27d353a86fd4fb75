"""The trained bytes do not depend on how many workers there are, nor on how they keep and move state."""

import os
import subprocess
import sys

import pytest

from .stage import SCRIPTS

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("transport", ["shared", "tcp"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 8])
def test_the_bytes_are_the_same(stage, assert_undisturbed, workers, transport, copies):
    ended = stage.play(start=workers, transport=transport, copies=copies)
    assert_undisturbed(ended)
    assert set(ended.shares(30)) == set(range(workers))
    assert ended.said[0] == "evaluated 27.0 52.0"
    # Each computes its first microbatch twice before the run begins.
    assert sum(sum(dealt.values()) for dealt in ended.dealt.values()) == 30 * 8 + 2 * workers


def test_plain_python_trains_to_the_same_bytes(quiet):
    """Cold, without the command line, in a process of its own."""
    command = [sys.executable, str(SCRIPTS / "training.py")]
    printed = subprocess.run(command, env=os.environ, check=True, capture_output=True, text=True, timeout=120)
    assert printed.stdout.splitlines() == quiet(30).said


def test_summing_fast_learns_too_and_its_ledger_is_sound(stage, quiet):
    ended = stage.play(start=3, convergence="fast")
    assert ended.over.code == 0, ended.story()
    assert ended.verdict.problems == ()
    assert ended.run.ledger[-1].loss == pytest.approx(quiet(30).run.ledger[-1].loss, abs=0.1)
