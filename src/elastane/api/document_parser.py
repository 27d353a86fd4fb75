"""From a document that somebody wrote to a value, or an error that names the field."""

import math
import re
from collections.abc import Iterable
from copy import deepcopy
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from elastane.api.bounds import LARGEST_COUNT
from elastane.api.errors import BadField

T = TypeVar("T")

CALLED = {
    "null": "null",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "array": "a list",
    "object": "fields with values",
    "datetime": "a moment with its time zone",
    "time": "a time of day",
}
"""The types of JSON and YAML, as msgspec names them, for people."""
WRITTEN = {
    "null": "null",
    "bool": "true or false",
    "int": "a whole number, such as 4",
    "float": "a number, such as 0.5",
    "str": 'a text, such as "abc" (in quotes where it looks like a number)',
    "array": "a list, such as [a, b]",
    "object": "fields with values, such as {field: value}",
    "datetime": "a moment with its time zone, such as 2026-12-01T18:00:00Z",
    "time": "a time of day, such as 18:00:00",
}
PAGE, PAGES = "docs/operating.md", {"JobSpec": "docs/concepts/job.md"}
"""Where the fields of documents are described; those of one type have a page of their own."""

MOST_WORKERS = 1_000_000
"""Of one run or job, more than any machine or cluster has devices for."""
LONGEST_REMARK = 1000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def parse_document(document: object, kind: type[T], what: str) -> T:
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
        raise _translated(str(error), document, kind, what) from None


def make_field_error(field: str, wrong: str, write: str, means: str = "") -> BadField:
    """``wrong`` completes a sentence that begins with the field."""
    return BadField(field, wrong, means=means, do=write)


def check_name(field: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise make_field_error(
            field,
            f"{name!r} is not a name",
            "write letters, digits, dots, dashes and underscores, up to 100, the first a letter or digit",
        )


def check_remark(field: str, text: str) -> None:
    """What somebody writes for others, who see it in a row of a table on their terminal."""
    if len(text) > LONGEST_REMARK:
        raise make_field_error(field, f"has {len(text)} characters", f"write {LONGEST_REMARK} at most")
    if not text.isprintable():
        raise make_field_error(
            field, "has line breaks or signs that command terminals", "write one line of text"
        )


def check_finite(field: str, value: float | None) -> None:
    # JSON has neither infinity nor NaN: on its way such a number would become none at all.
    if value is not None and not abs(value) < math.inf:
        raise make_field_error(field, f"{value:g} is no finite number", "write a finite one, or leave it out")


def check_finite_fields(document: msgspec.Struct) -> None:
    """Of what was typed, before JSON makes null of it and the refusal is of that."""
    for field in msgspec.structs.fields(document):
        if isinstance(value := getattr(document, field.name), float):
            check_finite(field.encode_name, value)


def check_minimum(field: str, value: float | None, least: float) -> None:
    check_finite(field, value)
    if value is not None and not value >= least:
        raise make_field_error(field, f"{value:g} is less than {least:g}", f"write {least:g} or more")


def check_bounded_count(field: str, value: int | None, least: int) -> None:
    """Of devices or workers: plans divide and weigh them, and cannot what is too large for that."""
    if value is not None and abs(value) > LARGEST_COUNT:
        raise make_field_error(field, f"is beyond {LARGEST_COUNT}", f"write {least} to {LARGEST_COUNT}")
    check_minimum(field, value, least)


def check_positive(field: str, value: float | None) -> None:
    check_finite(field, value)
    if value is not None and not value > 0:
        raise make_field_error(field, f"{value:g} is not more than 0", "write a number above 0")


def check_unique(field: str, names: Iterable[str]) -> None:
    seen = set[str]()
    for name in names:
        if name in seen:
            raise make_field_error(field, f"{name!r} is there twice", "name each one once")
        seen.add(name)


def describe_type(value: object) -> str:
    """What a value is, for whoever wrote it: ``a list``."""
    for kind, word in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str"), (list, "array")):
        if isinstance(value, kind):
            return CALLED[word]
    return CALLED["object"] if isinstance(value, dict) else "empty"


def _translated(message: str, document: object, kind: type, what: str) -> BadField:
    wrong, _, place = message.partition(" - at `")
    field = place.rpartition("$")[2].rstrip("`").lstrip(".")
    if place.startswith("key` in "):
        key = next(key for key in _at(document, field) if not isinstance(key, str))
        shown = msgspec.json.encode(key).decode().strip('"')
        return make_field_error(field or what, f"its key {shown} is not a text", f'write "{shown}" in quotes')
    above, unnamed, below = field.partition("[...]")
    if unnamed:
        field = f"{above}.{_refused_key(document, above, kind)}{below}"
    if unknown := re.search(r"unknown field `(.+?)`", wrong):
        place = f"{field}.{unknown[1]}" if field else unknown[1]
        return make_field_error(place, f"a {what} has no such field", _instead(unknown[1], field, kind))
    if missing := re.search(r"missing required field `(.+?)`", wrong):
        place = f"{field}.{missing[1]}" if field else missing[1]
        return make_field_error(place, "is missing", f"add {missing[1]} to the {what}")
    words, kinds = _of_a_value(wrong)
    choices = _choices(kind, _steps(field))
    if choices and (not kinds or "str" in kinds):
        write = " or ".join(choices)
    else:
        write = ", or ".join(WRITTEN[one] for one in kinds if one in WRITTEN)
    return make_field_error(field or what, words, f"write {write}" if write else "correct it")


def _refused_key(document: object, place: str, kind: type) -> str:
    """The key whose value is not allowed, of a mapping at a place in a document: msgspec does not name it."""
    document = deepcopy(document)
    mapping = _at(document, place)
    entries = list(mapping.items())
    while len(entries) > 1:
        half = len(entries) // 2
        mapping.clear()
        mapping.update(entries[:half])
        try:
            msgspec.convert(document, kind, strict=True)
        except msgspec.ValidationError:
            entries = entries[:half]
        else:
            entries = entries[half:]
    return str(entries[0][0])


def _at(document: Any, place: str) -> Any:  # noqa: ANN401 - whatever YAML has
    for step in _steps(place):
        document = document[int(step) if isinstance(document, list) else step]
    return document


def _steps(place: str) -> list[str]:
    """``data``, ``0`` and ``site`` of ``data[0].site``."""
    return re.findall(r"[^.\[\]]+", place)


def _of_a_value(wrong: str) -> tuple[str, list[str]]:
    """What msgspec finds wrong with a value, in words, and the types it might have had."""
    if expected := re.fullmatch(r"Expected `(.+?)`, got `(.+?)`", wrong):
        kinds = expected[1].split(" | ")
        wanted = " or ".join(CALLED.get(one, one) for one in kinds if one != "null")
        return f"is {CALLED.get(expected[2], expected[2])}, not {wanted}", kinds
    if encoded := re.fullmatch(r"Invalid RFC3339 encoded (.+)", wrong):
        return f"is not {CALLED.get(encoded[1], encoded[1])}", [encoded[1]]
    if value := re.fullmatch(r"Invalid (?:enum )?value (.+)", wrong):
        return f"{value[1]} is not one of its values", []
    return wrong[0].lower() + wrong[1:].replace("`", ""), []


def _instead(unknown: str, field: str, kind: object) -> str:
    """What to write for a field that is not there: one of the same place, the same of another, or none."""
    known = _fields(kind) if isinstance(kind, type) else []
    here = re.sub(r"\[.*?\]", "", field)
    beside = [path.rpartition(".")[2] for path in known if path.rpartition(".")[0] == here]
    if near := get_close_matches(unknown, beside, n=1):
        return f"write {near[0]}"
    elsewhere = [path for path in known if path.rpartition(".")[2] == unknown]
    page = PAGES.get(getattr(kind, "__name__", ""), PAGE)
    return f"write it as {elsewhere[0]}" if elsewhere else f"remove it, or look for its name in {page}"


def _choices(kind: object, path: list[str]) -> list[str]:
    """What may be written at a path in a document of this type, where that is one of a few words."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if path == [kind.__struct_config__.tag_field]:
            return [str(kind.__struct_config__.tag)]
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


def _fields(kind: type, seen: frozenset[type] = frozenset(), above: str = "") -> list[str]:
    """Paths of all fields of a struct and of the structs in it, as documents write them: ``data.site``."""
    found: list[str] = []
    for field in msgspec.structs.fields(kind):
        path = f"{above}.{field.encode_name}" if above else field.encode_name
        found.append(path)
        for inner in _structs(field.type):
            if inner not in seen:
                found += _fields(inner, seen | {kind}, path)
    return found


def _structs(kind: object) -> list[type[msgspec.Struct]]:
    """Those that a value of this type may be, or may hold."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [found for part in get_args(kind) for found in _structs(part)]
