"""Parsers of option values: durations, times, sizes, numbers of workers, limits and labels."""

import re
from datetime import datetime, timedelta

from elastane.common.durations import EXAMPLES, parse_duration_s
from elastane.common.errors import BadInput
from elastane.common.field_checks import MOST_WORKERS

UNLIMITED = "unlimited"
_RANGE = re.compile(r"(\d+)(?::(\d+))?", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.ASCII)


def read_duration_s(option: str, text: str) -> float:
    """Return the seconds of a duration; an error names the option, such as ``--announce``."""
    try:
        return parse_duration_s(text)
    except (ValueError, OverflowError):
        raise BadInput(
            f"invalid duration for {option}: {text!r}", do=f"write for example {EXAMPLES}"
        ) from None


def read_past_time(option: str, text: str, now: datetime) -> datetime:
    """Return a time: an ISO date or time, or a duration before now (``7d``).

    A time without a zone is in the zone of ``now``.
    """
    try:
        return now - timedelta(seconds=parse_duration_s(text))
    except ValueError:
        return _read_time(option, text, now, "2026-11-01, 2026-11-01T09:00+01:00, or 7d for a week ago")
    except OverflowError:
        raise BadInput(
            f"invalid time for {option}: {text!r} ago is before the year 1",
            do="write a later time, such as 7d for a week ago",
        ) from None


def read_future_time(option: str, text: str, now: datetime) -> datetime:
    """Return a time: an ISO date or time, or ``+`` and a duration from now (``+8h``).

    A time without a zone is in the zone of ``now``.
    """
    example = "+8h, +2d, or 2026-12-01T18:00"
    if not text.strip().startswith("+"):
        return _read_time(option, text, now, example)
    try:
        return now + timedelta(seconds=parse_duration_s(text.strip()[1:]))
    except ValueError:
        raise BadInput(f"invalid time for {option}: {text!r}", do=f"write for example {example}") from None
    except OverflowError:
        raise BadInput(
            f"invalid time for {option}: {text!r} is after the year 9999",
            do="write an earlier time, such as +8h or +30d",
        ) from None


def read_size_bytes(option: str, text: str) -> int:
    """Return the bytes of a size: ``5GB``, ``500 MB``, ``2GiB``, ``1000000``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise BadInput(f"invalid size for {option}: {text!r}", do=f"write for example {option} 5GB or 500MB")
    unit = 1024 if match[3] else 1000
    size_bytes = int(float(match[1]) * unit ** " kMGT".index(match[2] or " "))
    check_at_least(option, size_bytes, 1)
    return size_bytes


def read_range(text: str) -> tuple[int, int] | None:
    """Return the two numbers of ``MIN:MAX``, where one number is both; None for any other text."""
    match = _RANGE.fullmatch(text.strip())
    return None if match is None else (int(match[1]), int(match[2] or match[1]))


def read_worker_range(text: str, virtual_ranks: int | None = None) -> tuple[int, int]:
    """Return the fewest and most workers of ``--workers MIN:MAX``; no more than V virtual ranks, if known."""
    found = read_range(text)
    if found is None:
        raise BadInput(f"invalid --workers: {text!r} is not MIN:MAX", do="write for example --workers 1:8")
    low, high = found
    if low < 1:
        raise BadInput(f"--workers {text}: MIN is {low}; a run needs at least 1 worker", do="write 1 or more")
    if low > high:
        raise BadInput(f"--workers {text}: MIN {low} is larger than MAX {high}", do=f"write {high}:{low}")
    if high > MOST_WORKERS:
        raise BadInput(
            f"--workers {text} allows more than {MOST_WORKERS} workers",
            means="no machine or cluster has that many devices",
            do="write at most the number of devices that you have",
        )
    if virtual_ranks is not None and virtual_ranks < high:
        raise BadInput(
            f"--workers {text} allows {high} workers, but there are only {virtual_ranks} virtual ranks",
            means="each worker computes at least one virtual rank",
            do=f"write --virtual-ranks {high}, or --workers {min(low, virtual_ranks)}:{virtual_ranks}",
        )
    return low, high


def read_copies(text: str) -> int | None:
    """Return the number of copies of ``--copies``; None: every worker keeps the whole optimizer state."""
    if text == "all":
        return None
    try:
        copies = int(text)
    except ValueError:
        raise BadInput(
            f"invalid --copies: {text!r} is neither 'all' nor a number", do="write all, or a number such as 2"
        ) from None
    check_at_least("--copies", copies, 1)
    return copies


def read_limit(option: str, text: str) -> int | None:
    """Return a number of devices; None: unlimited."""
    if text == UNLIMITED:
        return None
    if not text.isdigit():
        raise BadInput(
            f"invalid number of devices for {option}: {text!r}", do=f"write a number, or {UNLIMITED}"
        )
    return int(text)


def read_labels(texts: list[str]) -> dict[str, str]:
    """Return the labels that the texts of ``--label KEY=VALUE`` define."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(
                f"invalid --label: {text!r} is not KEY=VALUE",
                do="write for example --label fabric=infiniband",
            )
        found[key] = value
    return found


def check_at_least(option: str, value: int, least: int) -> None:
    """Raise `BadInput` if a value is less than the minimum."""
    if value < least:
        raise BadInput(f"{option} {value} is less than {least}", do=f"write {least} or more")


def _read_time(option: str, text: str, now: datetime, example: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadInput(f"invalid time for {option}: {text!r}", do=f"write for example {example}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)
