"""From a document that somebody wrote to a value, or an error that names the field."""

import math
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal, TypeVar, get_args, get_origin

import msgspec

from elastane.api.errors import BadField

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def read(document: object, kind: type[T], what: str) -> T:
    """The value that a document, as YAML or JSON parsers return it, describes.

    Args:
        document: mappings, lists, strings and numbers.
        kind: a struct.
        what: a word for it, for errors: ``job``.

    Raises:
        BadField: with the field, what is wrong and what to write.
    """
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _translated(str(error), kind, what) from None


def invalid(field: str, wrong: str, write: str, means: str = "") -> BadField:
    """``wrong`` completes a sentence that begins with the field."""
    return BadField(field, wrong, means=means, do=write)


def check_name(field: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise invalid(
            field,
            f"{name!r} is not a name",
            "write letters, digits, dots, dashes and underscores, up to 100, the first a letter or digit",
        )


def finite(field: str, value: float | None) -> None:
    # JSON has neither infinity nor NaN: on its way such a number would become none at all.
    if value is not None and not abs(value) < math.inf:
        raise invalid(field, f"{value:g} is no finite number", "write a finite one, or leave it out")


def at_least(field: str, value: float | None, least: float) -> None:
    finite(field, value)
    if value is not None and not value >= least:
        raise invalid(field, f"{value:g} is less than {least:g}", f"write {least:g} or more")


def more_than_zero(field: str, value: float | None) -> None:
    finite(field, value)
    if value is not None and not value > 0:
        raise invalid(field, f"{value:g} is not more than 0", "write a number above 0")


def unique(field: str, names: Iterable[str]) -> None:
    seen = set[str]()
    for name in names:
        if name in seen:
            raise invalid(field, f"{name!r} is there twice", "name each one once")
        seen.add(name)


def _translated(message: str, kind: type, what: str) -> BadField:
    wrong, _, path = message.partition(" - at `$")
    field = path.rstrip("`").lstrip(".")
    if unknown := re.search(r"unknown field `(.+?)`", wrong):
        known = _fields(kind) if isinstance(kind, type) else []
        near = get_close_matches(unknown[1], known, n=1)
        place = f"{field}.{unknown[1]}" if field else unknown[1]
        write = f"write {near[0]}" if near else "remove it, or check docs/scheduling.md for its name"
        return invalid(place, f"a {what} has no such field", write)
    if missing := re.search(r"missing required field `(.+?)`", wrong):
        place = f"{field}.{missing[1]}" if field else missing[1]
        return invalid(place, "is missing", f"add {missing[1]} to the {what}")
    expected = re.search(r"Expected `(.+?)`", wrong)
    choices = _choices(kind, re.findall(r"[^.\[\]]+", field))
    write = f"write a value of type {expected[1]}" if expected else "correct it"
    if choices and not expected:
        write = f"write {' or '.join(choices)}"
    return invalid(field or what, wrong[0].lower() + wrong[1:].replace("`", ""), write)


def _choices(kind: object, path: list[str]) -> list[str]:
    """What may be written at a path in a document of this type, where that is one of a few words."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind) if path else ()
        return [
            one for field in fields if field.encode_name == path[0] for one in _choices(field.type, path[1:])
        ]
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)] if not path else []
    if kind is int:
        return ["a number"]
    inner = path[1:] if get_origin(kind) is tuple else path
    return [one for part in get_args(kind) for one in _choices(part, inner)]


def _fields(kind: type, seen: frozenset[type] = frozenset()) -> list[str]:
    """Names of all fields of a struct and of the structs in it, as documents write them."""
    found: list[str] = []
    for field in msgspec.structs.fields(kind):
        found.append(field.encode_name)
        for inner in _structs(field.type):
            if inner not in seen:
                found += _fields(inner, seen | {kind})
    return found


def _structs(kind: object) -> list[type[msgspec.Struct]]:
    """Those that a value of this type may be, or may hold."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [found for part in get_args(kind) for found in _structs(part)]
