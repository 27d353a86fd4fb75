"""Pieces of text that sentences about a plan are made of."""

from datetime import UTC, datetime

LEAST_SHOWN = 0.01
"""What two decimals can show."""


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 device``, ``2 devices``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def choose_is_or_are(number: int) -> str:
    """Return the verb for a number of things."""
    return "is" if number == 1 else "are"


def format_money(cost: float) -> str:
    """Return money with two decimals; a small amount with as many as show that it is not nothing."""
    return f"{cost:.2g}" if 0 < cost < LEAST_SHOWN else f"{cost:.2f}"


def format_time(at_s: float) -> str:
    """Return a time in UTC, given in seconds since 1970."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def make_sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop."""
    return f"{clause[0].upper()}{clause[1:]}."
