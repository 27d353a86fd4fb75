"""Times for the terminal: timestamps in its time zone, and when the processes of a run leave.

Files and sentences of the controller have timestamps in UTC; the commands convert them for display.
"""

import re
from datetime import datetime

from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.durations import format_duration
from elastane.run.nouns.spec import RunSpec

MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d UTC|T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))")
"""Timestamps in sentences (``2026-11-22 09:00:00 UTC``) and in documents (ISO 8601 with a zone)."""
AT_COMMIT = "at the next commit"


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


def describe_stop_time(spec: RunSpec | None) -> str:
    """Return when a run stops after a request, to follow a verb; None: its agent did not send the spec."""
    if spec is None or spec.contract is None:
        return AT_COMMIT
    return _describe_grace(spec.contract.grace_s)


def describe_restart(spec: RunSpec | None) -> str:
    """Return that the other workers restart, to follow an accepted change; empty: they train on."""
    if spec is None or spec.contract is None:
        return ""
    return f"; its script restarts at the new size {_describe_grace(spec.contract.grace_s)}"


def describe_job_stop_time(spec: JobSpec) -> str:
    """Return when a job stops after a request, to follow a verb."""
    if spec.contract == "elastane":
        return AT_COMMIT
    return _describe_grace(spec.elastic_policy.graceful_shutdown_timeout_in_seconds)


def _describe_grace(grace_s: float) -> str:
    return f"once it has saved, within {format_duration(grace_s)}"
