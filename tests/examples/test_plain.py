"""The plain twins run and learn, so that what train.py is compared with is worth comparing with."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed_by(script: str, *options: str) -> str:
    command = [sys.executable, str(EXAMPLES / script), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_the_plain_script_recognises_digits_after_two_epochs():
    words = printed_by("digits/plain.py", "--epochs=2").split()
    assert float(words[words.index("accuracy") + 1]) > 90


def test_the_plain_language_model_prints_its_loss_and_that_of_byte_frequencies():
    words = printed_by("lm/plain.py", "--steps=2").split()
    assert words[:2] == ["step", "2:"]
    assert 2.9 < float(words[-1].strip(")")) < 3.4
