"""Moments as a terminal shows them: in its own time zone, whoever has written them down in which.

Files and the controller's sentences are for everybody, and so in UTC.
"""

import re
from datetime import datetime

IN_UTC = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC|(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z")


def moment_text(at_s: float | None) -> str:
    """A moment in the terminal's own time zone; empty: never."""
    return "" if at_s is None else f"{datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M:%S}"


def in_local_time(text: str) -> str:
    """A text with its moments, ``2026-11-22 09:00:00 UTC`` or ``2026-11-22T09:00:00Z``, in that zone."""
    return IN_UTC.sub(
        lambda found: moment_text(datetime.fromisoformat(f"{found[1] or found[2]}+00:00").timestamp()), text
    )
