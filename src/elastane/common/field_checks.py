"""Checks of the values of single fields in documents."""

import math
import re
from collections.abc import Iterable

import msgspec

from elastane.common.bounds import LARGEST_COUNT
from elastane.common.errors import BadField

MOST_WORKERS = 1_000_000
"""The most workers of one run or job; no machine or cluster has devices for more."""
LONGEST_REMARK = 1000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of runs, jobs, teams, pools and everything else that users name."""


def make_field_error(field: str, wrong: str, write: str, means: str = "") -> BadField:
    """Return the error for a field; ``wrong`` completes a sentence that begins with the field."""
    return BadField(field, wrong, means=means, do=write)


def check_name(field: str, name: str) -> None:
    """Check that a name matches `NAME`.

    Raises:
        BadField: it does not. The other checks of this module raise the same error.
    """
    if not NAME.fullmatch(name):
        raise make_field_error(
            field,
            f"{name!r} is not a valid name",
            "write letters, digits, dots, dashes and underscores, up to 100, the first a letter or digit",
        )


def check_remark(field: str, text: str) -> None:
    """Check a free text that other users will see in a table row of their terminal."""
    if len(text) > LONGEST_REMARK:
        raise make_field_error(field, f"has {len(text)} characters", f"write {LONGEST_REMARK} at most")
    if not text.isprintable():
        raise make_field_error(field, "has line breaks or control characters", "write one line of text")


def check_finite(field: str, value: float | None) -> None:
    """Check that a number is finite: JSON has neither infinity nor NaN, and would drop the value."""
    if value is not None and not abs(value) < math.inf:
        raise make_field_error(field, f"{value:g} is not finite", "write a finite number, or remove it")


def check_finite_fields(document: msgspec.Struct) -> None:
    """Check the numbers of a document before it is sent as JSON."""
    for field in msgspec.structs.fields(document):
        if isinstance(value := getattr(document, field.name), float):
            check_finite(field.encode_name, value)


def check_minimum(field: str, value: float | None, least: float) -> None:
    """Check that a number is finite and at least ``least``."""
    check_finite(field, value)
    if value is not None and not value >= least:
        raise make_field_error(field, f"{value:g} is less than {least:g}", f"write {least:g} or more")


def check_bounded_count(field: str, value: int | None, least: int) -> None:
    """Check a number of devices or workers, which is bounded because plans divide and weigh it."""
    if value is not None and abs(value) > LARGEST_COUNT:
        raise make_field_error(field, f"is beyond {LARGEST_COUNT}", f"write {least} to {LARGEST_COUNT}")
    check_minimum(field, value, least)


def check_positive(field: str, value: float | None) -> None:
    """Check that a number is finite and above 0."""
    check_finite(field, value)
    if value is not None and not value > 0:
        raise make_field_error(field, f"{value:g} is not more than 0", "write a number above 0")


def check_unique(field: str, names: Iterable[str]) -> None:
    """Check that no name occurs twice."""
    seen = set[str]()
    for name in names:
        if name in seen:
            raise make_field_error(field, f"{name!r} occurs twice", "write each name once")
        seen.add(name)
