"""Values in the columns of a row: encoded so that they can be read back, and checked when they are read.

A disk may have damaged a row, another version may have written it, and SQLite stores any type in any column.
A reader gets `Malformed` for such a value, and confines the error to the row.
"""

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from elastane.common.bounds import LAST_MOMENT_S
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Decoder, Malformed

T = TypeVar("T")

LARGEST_BYTES = 4 << 20
"""Limit of one column. The spec of a job has at most a few hundred KiB."""
LARGEST_INTEGER = 2**53


def encode_json(value: object) -> str:
    """Return a value as JSON, equal for equal values.

    Raises:
        ValueError: the value holds a number that is not finite. JSON would have null for it, which a
            reader cannot decode as a number.
    """
    if (place := _find_not_finite(msgspec.to_builtins(value))) is not None:
        raise ValueError(f"{type(value).__name__}{place} is not finite, and cannot be stored")
    return msgspec.json.encode(value, order="deterministic").decode()


def _find_not_finite(value: Any, place: str = "") -> str | None:
    match value:
        case float():
            return None if math.isfinite(value) else place
        case dict():
            items = ((f"{place}.{key}", inner) for key, inner in value.items())
        case list() | tuple():
            items = ((f"{place}[{index}]", inner) for index, inner in enumerate(value))
        case _:
            return None
    return next((found for at, inner in items if (found := _find_not_finite(inner, at)) is not None), None)


class JsonColumn(Generic[T]):
    """Decodes the JSON in a text column; ``check`` raises `BadInput` if a value cannot be true."""

    def __init__(self, kind: Any, check: Callable[[T], object] | None = None) -> None:
        self._decode = Decoder[T](kind, at_most_bytes=LARGEST_BYTES)
        self._check = check

    def __call__(self, text: object) -> T:
        """Return the value.

        Raises:
            Malformed: the column holds no valid value.
        """
        if not isinstance(text, str):
            raise Malformed("it is not text")
        value = self._decode(text)
        if self._check is not None:
            try:
                self._check(value)
            except BadInput as error:
                raise Malformed(error.what) from error
        return value


def is_moment(value: object) -> bool:
    """Return whether a value is a time in seconds since 1970, or a duration in seconds."""
    return isinstance(value, int | float) and 0 <= value <= LAST_MOMENT_S


def is_amount(value: object) -> bool:
    """Return whether a value is a sum of money."""
    return isinstance(value, int | float) and 0 <= value < math.inf


def is_integer(value: object) -> bool:
    return isinstance(value, int) and abs(value) <= LARGEST_INTEGER
