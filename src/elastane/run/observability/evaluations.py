"""The means of evaluations, computed from the totals that the run has recorded."""

import math
from collections.abc import Mapping

from elastane.run.nouns.records import EventLine

KIND = "evaluation"
COUNTS = ("seen", "tokens", "count")
"""The names under which scripts sum the number of evaluated items; see docs/script.md."""


def read_evaluation_count(event: EventLine) -> tuple[str, float]:
    """Return the name and the value of an evaluation's divisor; the value is 0 if nothing was counted.

    A script that sums a loss over tokens also sums their number; otherwise the divisor is the number of
    samples.
    """
    for name in COUNTS:
        value = _read_finite(event.detail.get(name))
        if value is not None and value > 0:
            return ("samples" if value == event.samples else name), value
    return "samples", float(event.samples or 0)


def read_evaluation_means(event: EventLine) -> dict[str, float | None]:
    """Return the mean of each total (None: not finite), or without a count the totals themselves."""
    _, count = read_evaluation_count(event)
    counted = next((name for name in COUNTS if (_read_finite(event.detail.get(name)) or 0) > 0), None)
    found = {name: _read_finite(total) for name, total in event.detail.items() if name != counted}
    return {name: None if total is None else total / (count or 1.0) for name, total in found.items()}


def _read_finite(total: float | str | None) -> float | None:
    return float(total) if isinstance(total, int | float) and math.isfinite(total) else None


def describe_evaluation(event: EventLine) -> str:
    """Return a line such as ``correct 0.8531, loss 3.452 (160 samples)``."""
    return format_means(read_evaluation_means(event), *read_evaluation_count(event))


def format_means(means: Mapping[str, float | None], counted: str, count: float) -> str:
    """Return the means, or the totals if nothing was counted, in one line."""
    shown = ", ".join(f"{name} {format_mean(value)}" for name, value in means.items())
    if not count:
        return f"{shown} (totals)" if shown else ""
    divisor = f"{count:,.0f} {counted}"
    return f"{shown} ({divisor})" if shown else divisor


def format_mean(value: float | None) -> str:
    """Return a number in four digits, or ``not finite``."""
    return "not finite" if value is None else f"{value:.4g}"
