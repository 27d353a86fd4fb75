"""One grammar and one renderer for durations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.common.durations import format_duration, parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        (" 1 second ", 1),
        ("30m", 1800),
        ("15min", 900),
        ("1.5 h", 5400),
        ("2 hours", 7200),
        ("30d", 2_592_000),
        ("1 week", 604_800),
        ("1 h 30 min", 5400),
        ("1h30m", 5400),
    ],
)
def test_a_duration_is_numbers_with_units(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "soon", "-3h", "+3h", "3 years", "h", "1 h 30"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_s(text)


def test_a_duration_longer_than_any_float_is_refused():
    with pytest.raises(OverflowError, match="is too long"):
        parse_duration_s(f"{'9' * 400}d")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.04, "0 s"),
        (8.42, "8.4 s"),
        (9.97, "9.9 s"),
        (45.4, "45 s"),
        (59.7, "59 s"),
        (185, "3 min 5 s"),
        (3599.9, "59 min 59 s"),
        (7620, "2 h 7 min"),
        (86399.9, "23 h 59 min"),
        (200_000, "2 d 7 h"),
        (90 * 86400, "90 d"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(6, "6 s"), (125, "2 min"), (7199, "1 h"), (200_000, "2 d")])
def test_an_age_is_shown_in_its_largest_unit(seconds, text):
    assert format_duration(seconds, parts=1) == text


@given(st.floats(0, 1e10), st.integers(1, 4))
def test_a_shown_duration_is_read_back(seconds, parts):
    text = format_duration(seconds, parts=parts)
    again_s = parse_duration_s(text)
    assert format_duration(again_s, parts=parts) == text
    # A duration is truncated to tenths of a second.
    assert again_s == pytest.approx(seconds, rel=0.5, abs=0.1)


@given(st.integers(0, 10**7))
def test_whole_seconds_in_all_their_units_are_read_back_exactly(seconds):
    assert parse_duration_s(format_duration(seconds, parts=4)) == seconds
