"""Reading of YAML and JSON: one dialect, and limits against hostile texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cli.jobs.job_file import read_job
from elastane.common.documents import LARGEST_BYTES, format_yaml, read_json, read_yaml
from elastane.common.errors import BadInput

PLAIN = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text()
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(VALUES)
def test_a_written_value_is_read_back(value):
    assert read_yaml(format_yaml(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        {"": "0" + "Ā" * 20 + "0 0", "\uaaf7": None},
        {"args": [": x", ":", "a: b", ":-", "?x", "?!"]},
        {"setup": "module load a\n  source b", "text": " a\n", "odd": "a\x07\nb"},
    ],
)
def test_a_text_with_escapes_or_a_colon_is_read_back(value):
    """The library for YAML folds some texts wrongly, and leaves some without the quotes that they need."""
    assert read_yaml(format_yaml(value)) == value


def test_yaml_written_for_older_readers_has_the_same_values():
    words = ["no", "on", "y", "18:00", "010", "0x10", "1_000", "2026-12-01", "<<", "=", "~", ".inf", "1e3"]
    assert format_yaml(words).count("'") == 2 * len(words)


def test_unquoted_words_of_a_job_file_stay_texts(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "script: /train.py\nenv: {A: no, B: 18:00, C: 2026-12-01}\n"
        "training: {seed: 010}\ndeadline: 2026-12-01T18:00:00Z\n"
    )
    spec = read_job(path, name="j", team="t")
    assert spec.env == {"A": "no", "B": "18:00", "C": "2026-12-01"}
    assert spec.training.seed == 10
    assert spec.deadline is not None
    assert spec.deadline.isoformat() == "2026-12-01T18:00:00+00:00"


def test_a_yaml_directive_does_not_change_the_values():
    assert read_yaml("%YAML 1.1\n---\n{a: no, b: 010}") == {"a": "no", "b": 10}


def describe_billions() -> str:
    """Return nine lines of YAML with aliases that expand to a billion values."""
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    return "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x, x]", *lines])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (describe_billions(), "more than 1000000 values"),
        ("a: &a [*a]", "more than 64 levels deep"),
        ("[" * 70 + "]" * 70, "more than 64 levels deep"),
        ("- " * 1000, "more than 64 levels deep"),
        (" " * (LARGEST_BYTES + 1), f"more than {LARGEST_BYTES}"),
        ("a: !!python/object/apply:os.system [ls]", "is not YAML"),
        ("a: !!timestamp 2026-13-45", "is not YAML"),
        ("a: \x1b", "is not YAML"),
        ("a: 1\n---\nb: 2", "is not YAML"),
        ("a: " + "9" * 5000, "is not YAML"),
    ],
)
def test_hostile_yaml_is_refused_with_an_explanation(text, what):
    with pytest.raises(BadInput, match=what):
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"[" * 100_000, "deep|is not JSON"),
        (b"[" * 70 + b"]" * 70, "more than 64 levels deep"),
        (b" " * (LARGEST_BYTES + 1), f"more than {LARGEST_BYTES}"),
        (json.dumps({"a": 1})[:-1].encode() + b', "a": 2}', "has a twice"),
    ],
)
def test_hostile_json_is_refused_with_an_explanation(text, what):
    with pytest.raises(BadInput, match=what):
        read_json(text)
