"""A training script needs at most ten changed lines for Elastane."""

from difflib import SequenceMatcher
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def count_changed_lines(plain: str, elastic: str) -> int:
    """Count the lines added or removed; a line that replaces another counts once."""
    before, after = plain.splitlines(), elastic.splitlines()
    hunks = SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes()
    return sum(max(stop - start, end - begin) for kind, start, stop, begin, end in hunks if kind != "equal")


@pytest.mark.parametrize("script", ["lm/plain.py", "digits/plain.py", "fsdp/torchrun.py"])
def test_ten_changed_lines_make_a_plain_script_elastic(script):
    plain, elastic = (
        (EXAMPLES / script).with_name(name).read_text() for name in (Path(script).name, "train.py")
    )
    assert 0 < count_changed_lines(plain, elastic) <= 10


def test_a_replaced_line_counts_once_and_a_removed_one_too():
    assert count_changed_lines("a\nb\nc\nd", "a\nB\nd") == 2
