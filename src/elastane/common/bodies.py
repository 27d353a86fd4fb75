"""The base classes of the bodies of REST requests and answers."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class AnswerBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of answers: clients ignore fields that they do not know."""


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of requests: an unknown field is an error, because the client meant it to have an effect."""


class Page(AnswerBody, Generic[T], frozen=True, kw_only=True):
    """One page of a list.

    Args:
        items: in the order of the list.
        after: cursor of the next page; empty: this is the last one.
    """

    items: tuple[T, ...]
    after: str = ""


def cut_page(found: Sequence[T], limit: int, name_cursor: Callable[[T], object]) -> Page[T]:
    """Return the first of the items found; one more than the limit tells that another page follows."""
    items = tuple(found[:limit])
    return Page(items=items, after=str(name_cursor(items[-1])) if len(found) > limit else "")


class Problem(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was refused or failed, as ``application/problem+json`` (RFC 9457).

    Args:
        type: always ``about:blank``; the status tells the kind of the problem.
        title: name of the status.
        status: the HTTP status code.
        detail: what happened.
        means: the consequence for the client.
        do: the remedy.
        field: path of the wrong part of the request, such as ``elasticPolicy.minReplicas``.
    """

    type: str
    title: str
    status: int
    detail: str
    means: str = ""
    do: str = ""
    field: str = ""
