"""Parsing of YAML and JSON documents into structs, with errors that name the field and its correction."""

import re
from copy import deepcopy
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from elastane.common.errors import BadField
from elastane.common.field_checks import make_field_error

T = TypeVar("T")

TYPE_NAMES = {
    "null": "null",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "array": "a list",
    "object": "fields with values",
    "datetime": "a time with its time zone",
    "time": "a time of day",
}
"""Readable names of the types of JSON and YAML, by msgspec's names."""
TYPE_EXAMPLES = {
    "null": "null",
    "bool": "true or false",
    "int": "a whole number, such as 4",
    "float": "a number, such as 0.5",
    "str": 'a text, such as "abc" (in quotes where it looks like a number)',
    "array": "a list, such as [a, b]",
    "object": "fields with values, such as {field: value}",
    "datetime": "a time with its time zone, such as 2026-12-01T18:00:00Z",
    "time": "a time of day, such as 18:00:00",
}
PAGE = "docs/operating.md"
"""The page that describes the fields of most documents."""
PAGES = {"JobSpec": "docs/concepts/job.md", "Recipe": "elastane recipe show NAME"}
"""The pages that describe the fields of the others, by type."""


def parse_document(document: object, kind: type[T], what: str) -> T:
    """Convert a document, as YAML or JSON parsers return it, into a value of a type.

    Args:
        document: mappings, lists, strings and numbers.
        what: the word for it in errors, such as ``job``.

    Raises:
        BadField: the document does not describe such a value.
    """
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _translate_error(str(error), document, kind, what) from None


def describe_type(value: object) -> str:
    """Return the type of a value in words: ``a list``."""
    for kind, word in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str"), (list, "array")):
        if isinstance(value, kind):
            return TYPE_NAMES[word]
    return TYPE_NAMES["object"] if isinstance(value, dict) else "empty"


def _translate_error(message: str, document: object, kind: type, what: str) -> BadField:
    wrong, _, place = message.partition(" - at `")
    field = place.rpartition("$")[2].rstrip("`").lstrip(".")
    if place.startswith("key` in "):
        key = next(key for key in _get_value_at(document, field) if not isinstance(key, str))
        shown = msgspec.json.encode(key).decode().strip('"')
        return make_field_error(field or what, f"the key {shown} is not a text", f'write "{shown}" in quotes')
    above, unnamed, below = field.partition("[...]")
    if unnamed:
        field = f"{above}.{_find_refused_key(document, above, kind)}{below}"
    if unknown := re.search(r"unknown field `(.+?)`", wrong):
        place = f"{field}.{unknown[1]}" if field else unknown[1]
        return make_field_error(place, f"a {what} has no such field", _suggest_field(unknown[1], field, kind))
    if missing := re.search(r"missing required field `(.+?)`", wrong):
        place = f"{field}.{missing[1]}" if field else missing[1]
        return make_field_error(place, "is missing", f"add {missing[1]} to the {what}")
    words, kinds = _describe_wrong_value(wrong)
    choices = _list_choices(kind, _split_path(field))
    if choices and (not kinds or "str" in kinds):
        write = " or ".join(choices)
    else:
        write = ", or ".join(TYPE_EXAMPLES[kind] for kind in kinds if kind in TYPE_EXAMPLES)
    return make_field_error(field or what, words, f"write {write}" if write else "correct it")


def _find_refused_key(document: object, place: str, kind: type) -> str:
    """Return the key of a mapping's invalid value, which msgspec does not name."""
    document = deepcopy(document)
    mapping = _get_value_at(document, place)
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


def _get_value_at(document: Any, place: str) -> Any:
    for step in _split_path(place):
        document = document[int(step) if isinstance(document, list) else step]
    return document


def _split_path(place: str) -> list[str]:
    """Return ``data``, ``0`` and ``site`` for ``data[0].site``."""
    return re.findall(r"[^.\[\]]+", place)


def _describe_wrong_value(wrong: str) -> tuple[str, list[str]]:
    """Return msgspec's complaint about a value in words, and the types that are allowed there."""
    if expected := re.fullmatch(r"Expected `(.+?)`, got `(.+?)`", wrong):
        kinds = expected[1].split(" | ")
        wanted = " or ".join(TYPE_NAMES.get(kind, kind) for kind in kinds if kind != "null")
        return f"is {TYPE_NAMES.get(expected[2], expected[2])}, not {wanted}", kinds
    if encoded := re.fullmatch(r"Invalid RFC3339 encoded (.+)", wrong):
        return f"is not {TYPE_NAMES.get(encoded[1], encoded[1])}", [encoded[1]]
    if value := re.fullmatch(r"Invalid (?:enum )?value (.+)", wrong):
        return f"{value[1]} is not an allowed value", []
    return wrong[0].lower() + wrong[1:].replace("`", ""), []


def _suggest_field(unknown: str, field: str, kind: object) -> str:
    """Return the advice for an unknown field: a similar name, its place elsewhere, or to remove it."""
    known = _list_fields(kind) if isinstance(kind, type) else []
    here = re.sub(r"\[.*?\]", "", field)
    beside = [path.rpartition(".")[2] for path in known if path.rpartition(".")[0] == here]
    meant = _find_by_initials(unknown, known)
    if not meant and (near := get_close_matches(unknown, beside, n=1)):
        return f"write {near[0]}"
    elsewhere = [path for path in known if path.rpartition(".")[2] in (meant or [unknown])]
    page = PAGES.get(getattr(kind, "__name__", ""), PAGE)
    return f"write it as {elsewhere[0]}" if elsewhere else f"remove it, or look for its name in {page}"


def _find_by_initials(unknown: str, known: list[str]) -> list[str]:
    """Return the names that people abbreviate so, such as ``learning_rate`` for ``lr``."""
    names = {path.rpartition(".")[2] for path in known}
    return sorted(n for n in names if "_" in n and "".join(word[:1] for word in n.split("_")) == unknown)


def _list_choices(kind: object, path: list[str]) -> list[str]:
    """Return the words allowed at a path in a document of this type; empty if the words are not limited."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if path == [kind.__struct_config__.tag_field]:
            return [str(kind.__struct_config__.tag)]
        fields = msgspec.structs.fields(kind) if path else ()
        return [
            choice
            for field in fields
            if field.encode_name == path[0]
            for choice in _list_choices(field.type, path[1:])
        ]
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)] if not path else []
    if kind is int:
        return ["a number"]
    inner = path[1:] if get_origin(kind) is tuple else path
    return [choice for part in get_args(kind) for choice in _list_choices(part, inner)]


def _list_fields(kind: type, seen: frozenset[type] = frozenset(), above: str = "") -> list[str]:
    """Return the paths of all fields of a struct and of the structs in it: ``data.site``."""
    found: list[str] = []
    for field in msgspec.structs.fields(kind):
        path = f"{above}.{field.encode_name}" if above else field.encode_name
        found.append(path)
        for inner in _list_structs(field.type):
            if inner not in seen:
                found += _list_fields(inner, seen | {kind}, path)
    return found


def _list_structs(kind: object) -> list[type[msgspec.Struct]]:
    """Return the structs that a value of this type may be or contain."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [found for part in get_args(kind) for found in _list_structs(part)]
