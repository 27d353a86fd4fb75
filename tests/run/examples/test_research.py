"""The example of institutes with bound data trains, also alone."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "research" / "train.py"
GUESSES = 25.0


@pytest.mark.long
def test_the_model_of_three_institutes_learns_in_a_few_rounds():
    command = [sys.executable, str(EXAMPLE), "--rounds=6", "--inner-steps=10"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert float(printed.split()[2].removesuffix("%")) > 2 * GUESSES, printed
