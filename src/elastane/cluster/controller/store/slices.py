"""Slices of long lists, as queries return them."""

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Slice(msgspec.Struct, Generic[T], frozen=True):
    """Some items of a list.

    Args:
        items: in the order of the list.
        after: begin of the next slice; empty: this is the last one.
    """

    items: tuple[T, ...]
    after: str = ""
