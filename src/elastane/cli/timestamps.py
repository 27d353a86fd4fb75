"""Moments as a terminal shows them: in its own time zone, whoever has written them down in which.

Files and the controller's sentences are for everybody, and so in UTC.
"""

import re
from datetime import datetime

MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d UTC|T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))")
"""As sentences have it, and as documents do: with a zone, which is that of whoever wrote it."""


def format_timestamp(at_s: float | None) -> str:
    """A moment in the terminal's own time zone; empty: never."""
    return "" if at_s is None else f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M:%S}"


def format_minute(seconds: float | None) -> str:
    """Return a time in the terminal's time zone, to the minute; empty for None."""
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"


def localize_timestamps(text: str) -> str:
    """A text with its moments, ``2026-11-22 09:00:00 UTC`` or ``2026-11-22T09:00:00.5Z``, in that zone."""
    return MOMENT.sub(
        lambda found: format_timestamp(datetime.fromisoformat(found[0].replace(" UTC", "Z")).timestamp()),
        text,
    )
