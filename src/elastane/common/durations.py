"""Durations as users write and read them: one parser and one renderer for the whole project.

A duration is one or more numbers with units: ``90s``, ``15 min``, ``1.5h``, ``2 d``, ``1 h 30 min``.
"""

import math
import re

HOUR_S, DAY_S = 3600.0, 86400.0
UNITS_S = {"w": 7 * DAY_S, "d": DAY_S, "h": HOUR_S, "min": 60.0, "s": 1.0}
"""Seconds in each unit, the largest first."""
EXAMPLES = "90s, 15min, 2h or 30d"
"""Examples for help and errors."""

_UNIT = r"s|sec|secs|seconds?|m|min|mins|minutes?|h|hours?|d|days?|w|weeks?"
_PART = re.compile(rf"(\d+(?:\.\d+)?)\s*({_UNIT})", re.ASCII)
_WHOLE = re.compile(rf"{_PART.pattern}(?:\s*{_PART.pattern})*", re.ASCII)
_TENTHS_BELOW_S = 10.0


def parse_duration_s(text: str) -> float:
    """Return the seconds of a duration.

    Raises:
        ValueError: the text is not a duration.
        OverflowError: the duration is longer than any float.
    """
    if _WHOLE.fullmatch(text.strip()) is None:
        raise ValueError(f"{text!r} is not a duration")
    seconds = sum(float(number) * _find_unit_s(unit) for number, unit in _PART.findall(text))
    if not math.isfinite(seconds):
        raise OverflowError(f"{text!r} is too long")
    return seconds


def format_duration(seconds: float, *, parts: int = 2) -> str:
    """Return a duration in its largest units, truncated: ``8.4 s``, ``3 min 5 s``, ``2 h 7 min``.

    Args:
        seconds: a negative number counts as 0.
        parts: at most this many units.
    """
    if seconds < _TENTHS_BELOW_S:
        # Floating point may make a parsed tenth a little smaller than it was written.
        return f"{math.floor(10 * max(0.0, seconds) + 1e-9) / 10:g} s"
    found = []
    left_s = seconds
    for unit in ("d", "h", "min", "s"):
        count, left_s = divmod(left_s, UNITS_S[unit])
        found.append((count, unit))
    while not found[0][0]:
        del found[0]
    return " ".join(f"{count:.0f} {unit}" for count, unit in found[:parts] if count)


def _find_unit_s(word: str) -> float:
    return UNITS_S["min" if word.startswith("m") else word[0]]
