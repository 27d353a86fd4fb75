"""Timestamps in the time zone of the terminal.

Files and sentences of the controller have timestamps in UTC; the commands convert them for display.
"""

import re
from datetime import datetime

MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d UTC|T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))")
"""Timestamps in sentences (``2026-11-22 09:00:00 UTC``) and in documents (ISO 8601 with a zone)."""


def format_timestamp(at_s: float | None) -> str:
    """Return a time in seconds since 1970 as text in the terminal's time zone; empty for None."""
    return "" if at_s is None else f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M:%S}"


def format_minute(seconds: float | None) -> str:
    """Return a time in the terminal's time zone, to the minute; empty for None."""
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"


def localize_timestamps(text: str) -> str:
    """Return a text with all its timestamps converted to the terminal's time zone."""
    return MOMENT.sub(
        lambda found: format_timestamp(datetime.fromisoformat(found[0].replace(" UTC", "Z")).timestamp()),
        text,
    )
