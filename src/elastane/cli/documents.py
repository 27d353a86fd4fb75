"""YAML and JSON that somebody has written by hand: parsed only if every key is there once.

Usual readers take the last of two values and say nothing of the first, which somebody meant as well.
"""

import json
from typing import Any

import msgspec

from elastane.api.errors import BadInput
from elastane.api.extras import needing


def pyyaml(what: str = "") -> Any:  # noqa: ANN401 - a library without types
    """The library that reads and writes YAML.

    Args:
        what: needs it; empty: a file, with which somebody else begins the sentence.

    Raises:
        BadInput: it is not there.
    """
    with needing("client", f"{what} needs pyyaml".lstrip()):
        import yaml  # noqa: PLC0415 - few verbs need it
    return yaml


def read_yaml(text: str | bytes, loader: Any = None) -> object:  # noqa: ANN401
    """What YAML describes.

    Args:
        text: of a file.
        loader: a class of pyyaml's, which knows what a plain word is; None: its safe one, of YAML 1.1.

    Raises:
        BadInput: it is not YAML, or a key is there twice; a sentence that begins with the file.
    """
    yaml = pyyaml()
    base = yaml.SafeLoader if loader is None else loader

    def compose_mapping_node(self: Any, anchor: object) -> Any:  # noqa: ANN401
        node = base.compose_mapping_node(self, anchor)
        lines = dict[tuple[str, str], int]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line, name = key.start_mark.line + 1, (key.tag, key.value)
                if name in lines:
                    first = lines[name]
                    where = f"line {line}" if first == line else f"lines {first} and {line}"
                    raise _duplicate_key(key.value, f": on {where}")
                lines[name] = line
        return node

    try:
        return yaml.load(text, Loader=type("Loader", (base,), {"compose_mapping_node": compose_mapping_node}))
    # A date that no calendar has, such as 2026-13-45, is a ValueError of Python's own.
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput("is not YAML: " + " ".join(str(error).split()), do="correct it") from error


def read_json(text: bytes) -> object:
    """What JSON describes.

    Raises:
        BadInput: it is not JSON, or a key is there twice; a sentence that begins with the file.
    """
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput("is not JSON: " + " ".join(str(error).split()), do="correct it") from error
    # Again for its keys alone: msgspec keeps the last of two, and numbers mean nothing here.
    json.loads(text, object_pairs_hook=_check_unique, parse_int=str, parse_float=str)
    return found


def _check_unique(pairs: list[tuple[str, object]]) -> None:
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            raise _duplicate_key(key, " in one place")
        seen.add(key)


def _duplicate_key(key: str, where: str) -> BadInput:
    return BadInput(
        f"has {key} twice{where}",
        means="only one of the two would count, and the other would be lost",
        do="write it once",
    )
