"""Changes of a recipe as typed: ``--set training.steps=200``."""

from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from elastane.common.documents import read_yaml
from elastane.common.errors import BadInput
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_files import Document, make_paths_absolute, merge_documents

MOST_LEVELS = 8
WARMUP_PART = 10
"""A warm-up that follows from the steps takes this part of them."""


def apply_overrides(document: Document, texts: Iterable[str], folder: Path) -> Document:
    """Return a recipe's document with the typed changes.

    Args:
        texts: as ``training.steps=200``; later ones win.
        folder: where relative paths in them start, absolute.

    Raises:
        BadInput: a text is not a dotted name with a value. The name itself is checked with the recipe.
    """
    changes: Document = {}
    for text in texts:
        changes = merge_documents(changes, make_paths_absolute(parse_override(text), folder))
    return _shorten_warmup(merge_documents(document, changes), changes)


def _shorten_warmup(document: Document, changes: Document) -> Document:
    """Let the warm-up follow if only the steps were typed, and the recipe's own warm-up does not fit in."""
    typed, training = changes.get("training"), document.get("training")
    if not isinstance(typed, dict) or not isinstance(training, dict) or "warmup_steps" in typed:
        return document
    steps, warmup = typed.get("steps"), training.get("warmup_steps")
    if not isinstance(steps, int) or not isinstance(warmup, int) or not 0 < steps <= warmup:
        return document
    return merge_documents(document, {"training": {"warmup_steps": steps // WARMUP_PART}})


def parse_override(text: str) -> Document:
    """Return the document of one change: ``{"training": {"steps": 200}}``.

    Raises:
        BadInput: the text is not a dotted name with a value.
    """
    name, equals, value = text.partition("=")
    steps = name.strip().split(".")
    if not equals or not all(steps) or len(steps) > MOST_LEVELS:
        raise BadInput(
            f"invalid --set: {text!r} is not KEY=VALUE",
            means="KEY is the dotted name of a field, as elastane recipe show prints them",
            do="write for example --set training.steps=200",
        )
    document: Any = _read_value(steps, value)
    for step in reversed(steps):
        document = {step: document}
    return dict(document)


def _read_value(steps: list[str], text: str) -> object:
    """Return the typed value of a field: a text where the recipe wants one, else what YAML makes of it."""
    kind: object = Recipe
    for step in steps:
        kind = _find_field(kind, step)
    if _is_text(kind) and (kind is str or not _is_number(text)):
        return text
    try:
        return read_yaml(text)
    except BadInput as error:
        raise BadInput(
            f"--set {'.'.join(steps)}: the value {text!r} {error.what}", means=error.means, do=error.do
        ) from error


def _find_field(kind: object, name: str) -> object:
    """Return the type of a field of a struct; None: it has no such field."""
    for choice in (kind, *get_args(kind)):
        if isinstance(choice, type) and issubclass(choice, msgspec.Struct):
            fields = msgspec.structs.fields(choice)
            return next((field.type for field in fields if field.encode_name == name), None)
    return None


def _is_text(kind: object) -> bool:
    """Return whether a value of this type may be any text."""
    return kind is str or (get_origin(kind) in (UnionType, Union) and str in get_args(kind))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
