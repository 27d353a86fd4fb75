"""The text of repeated measurements: the median and the range."""

from collections.abc import Sequence
from statistics import median


def format_spread(values: Sequence[float], unit: str = "", scale: float = 1.0, digits: int = 2) -> str:
    """Return ``median (lowest to highest)`` with the unit; ``scale`` is applied first."""
    if not values:
        return "not measured"
    scaled = [value * scale for value in values]
    middle, low, high = (f"{v:.{digits}f}" for v in (median(scaled), min(scaled), max(scaled)))
    return f"{middle}{unit and ' ' + unit} ({low} to {high})"
