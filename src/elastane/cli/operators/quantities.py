"""Durations, moments and limits as operators type them, and as they read them."""

import re
from datetime import datetime, timedelta

from elastane.api.errors import BadInput

DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)?")
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
UNLIMITED = "unlimited"


def duration_s(option: str, text: str) -> float:
    """Seconds, of ``90``, ``15min``, ``2 h`` or ``30d``.

    Args:
        option: for the error: ``--announce``.
        text: as typed.

    Raises:
        BadInput: it is none of these.
    """
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise BadInput(f"{option} {text!r} is no duration", do="write for example 90s, 15min, 2h or 30d")
    return float(match[1]) * SECONDS[(match[2] or "s")[0]]


def duration_text(seconds: float) -> str:
    """The same in the largest unit that says it: ``15min``, ``90s``."""
    for unit, size_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds and seconds % size_s == 0:
            return f"{seconds / size_s:.10g}{unit}"
    return f"{seconds:.10g}s"


def parse_time(option: str, text: str, now: datetime) -> datetime:
    """A moment, of an ISO date or time, or of how long ago it was: ``7d``.

    Args:
        option: for the error: ``--from``.
        text: as typed; a time without a zone is in that of ``now``.
        now: with its time zone.

    Raises:
        BadInput: it is none of these, or no calendar goes so far back.
    """
    if DURATION.fullmatch(text.strip()):
        try:
            return now - timedelta(seconds=duration_s(option, text))
        except OverflowError:
            raise BadInput(
                f"{option} {text!r} is before the year 1", do="write a later one, such as 7d for a week ago"
            ) from None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"{option} {text!r} is no moment",
            do="write for example 2026-11-01, 2026-11-01T09:00+01:00, or 7d for a week ago",
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)


def parse_limit(option: str, text: str) -> int | None:
    """A number of devices; None: any number.

    Raises:
        BadInput: neither.
    """
    if text == UNLIMITED:
        return None
    if not text.isdigit():
        raise BadInput(f"{option} {text!r} is no number of devices", do=f"write a number, or {UNLIMITED}")
    return int(text)


def parse_labels(option: str, texts: list[str]) -> dict[str, str]:
    """Labels, of ``key=value`` each.

    Raises:
        BadInput: one of them is not.
    """
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(f"{option} {text!r} is not KEY=VALUE", do=f"write {option} fabric=infiniband")
        found[key] = value
    return found


def format_minute(seconds: float | None) -> str:
    """A moment in the terminal's time zone, to the minute; empty for None."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
