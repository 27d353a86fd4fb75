"""The plain scripts train, so comparisons of train.py with them mean something."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_script(script: str, *options: str) -> str:
    command = [sys.executable, str(EXAMPLES / script), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_the_plain_script_recognises_digits_after_two_epochs():
    words = run_script("digits/plain.py", "--epochs=2").split()
    assert float(words[words.index("accuracy") + 1]) > 90


def test_the_plain_language_model_prints_its_loss_and_that_of_byte_frequencies():
    words = run_script("lm/plain.py", "--steps=2").split()
    assert words[:2] == ["step", "2:"]
    assert 2.9 < float(words[-1].strip(")")) < 3.4
