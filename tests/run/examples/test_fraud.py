"""The example of several sites learns, also alone."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "fraud" / "train.py"


def test_the_detector_finds_frauds_after_one_epoch_in_rounds():
    command = [sys.executable, str(EXAMPLE), "--epochs=1", "--inner-steps=10"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    words = printed.replace(")", "").split()
    precision, guesses = float(words[2]), float(words[-1])
    assert precision > 3 * guesses, printed
