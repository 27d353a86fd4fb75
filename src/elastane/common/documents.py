"""Reader and writer of YAML and JSON documents: jobs, configurations, and all that the commands print.

YAML is read as version 1.2 with its core schema: ``no``, ``18:00`` and ``2026-12-01`` are texts, and ``010``
is 10. A duplicate key is refused, because other readers silently take the last value.
"""

import json
import re
from functools import lru_cache
from io import StringIO
from typing import Any, BinaryIO

import msgspec

from elastane.common.errors import BadInput
from elastane.common.extras import require_for_import
from elastane.common.untrusted_data import DEEPEST

LARGEST_BYTES = 8 << 20
MOST_VALUES = 1_000_000
"""Limit for one document with all aliases expanded: a few lines of aliases can describe billions."""
UNBOUNDED_WIDTH = 1 << 30

_TAG = "tag:yaml.org,2002:"
_DIGITS = "0123456789"
_CORE = {
    f"{_TAG}null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    f"{_TAG}bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    f"{_TAG}int": (r"[-+]?\d+", list("-+" + _DIGITS)),
    f"{_TAG}float": (r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?", list("-+." + _DIGITS)),
    f"{_TAG}merge": (r"<<", ["<"]),
}
"""Patterns of plain words that are not texts, with their possible first characters."""
_YAML_1_1 = {
    f"{_TAG}bool": (r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|y|Y|n|N", list("yYnNoO")),
    f"{_TAG}int": (
        r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|\d[\d_]*(?::[0-5]?\d)*)",
        list("-+" + _DIGITS),
    ),
    f"{_TAG}float": (
        r"[-+]?(?:\d[\d_]*(?::[0-5]?\d)*\.?[\d_]*(?:[eE][-+]?\d+)?|\.[\d_]+(?:[eE][-+]?\d+)?|\.(?i:inf))|\.(?i:nan)",
        list("-+." + _DIGITS),
    ),
    f"{_TAG}timestamp": (r"\d{4}-\d\d?-\d\d?.*", list(_DIGITS)),
    f"{_TAG}value": (r"=", ["="]),
    # The library would write it without quotes in a list on one line, where not every reader takes it for a
    # text.
    f"{_TAG}map": (r"[:?].*", [":", "?"]),
}
"""Patterns of words that readers of YAML 1.1 do not take for texts; the writer quotes these."""


def read_yaml(text: str | bytes) -> object:
    """Return the value that YAML describes.

    Raises:
        BadInput: the text is not YAML, has a key twice, or is too large or too deep. The caller puts the name
            of the file before the message.
    """
    _check_size(text)
    library = _import_library()
    try:
        document = library.load(text)
    except _import_classes().duplicate as error:
        raise BadInput(*error.args, means=_LOST, do="write it once") from error
    except RecursionError as error:
        raise _too_deep() from error
    except (_import_classes().error, ValueError) as error:
        raise BadInput("is not YAML: " + " ".join(str(error).split()), do="correct it") from error
    _check_values(document)
    return document


def read_json(text: bytes) -> object:
    """Return the value that JSON describes.

    Raises:
        BadInput: the text is not JSON, has a key twice, or is too large or too deep. The caller puts the name
            of the file before the message.
    """
    _check_size(text)
    try:
        found = msgspec.json.decode(text)
        # Parse again to find duplicate keys: msgspec keeps the last. Only keys matter, so numbers stay texts.
        json.loads(text, object_pairs_hook=_check_unique, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise _too_deep() from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput("is not JSON: " + " ".join(str(error).split()), do="correct it") from error
    _check_values(found)
    return found


def format_yaml(value: object) -> str:
    """Return YAML of mappings, lists, texts and numbers; a list of scalars is written on one line.

    Readers of YAML 1.1 and 1.2 read the same values from it.

    Raises:
        BadInput: the library is not installed.
    """
    text = _dump(value, allow_unicode=True)
    # Escape characters that a terminal would interpret; the values stay the same.
    return text if text.replace("\n", "").isprintable() else _dump(value, allow_unicode=False)


_LOST = "only one of the two values would be used"


def _import_library() -> Any:
    library = _import_classes().yaml(typ="safe", pure=True)
    library.Resolver, library.Composer = _import_classes().reader, _import_classes().composer
    library.Constructor = _import_classes().constructor
    return library


def _dump(value: object, *, allow_unicode: bool) -> str:
    library = _import_classes().yaml(typ="safe", pure=True)
    library.Resolver, library.Representer = _import_classes().writer, _import_classes().representer
    library.allow_unicode, library.default_flow_style = allow_unicode, False
    # Never fold a line: the library folds texts with escapes at places where readers then see a space.
    library.width = UNBOUNDED_WIDTH
    library.sort_base_mapping_type_on_output = False
    text = StringIO()
    library.dump(value, text)
    return text.getvalue()


class _Classes(msgspec.Struct, frozen=True):
    """Classes of ruamel.yaml and our subclasses, which exist only after the library is imported."""

    yaml: Any
    error: type[Exception]
    duplicate: type[Exception]
    reader: Any
    writer: Any
    composer: Any
    constructor: Any
    representer: Any


@lru_cache
def _import_classes() -> _Classes:
    """Import ruamel.yaml, and return its classes and our subclasses."""
    with require_for_import("client", "YAML needs ruamel.yaml"):
        from ruamel.yaml import YAML
        from ruamel.yaml.composer import Composer
        from ruamel.yaml.constructor import SafeConstructor
        from ruamel.yaml.error import YAMLError
        from ruamel.yaml.nodes import ScalarNode
        from ruamel.yaml.representer import SafeRepresenter
        from ruamel.yaml.resolver import VersionedResolver

    class Reader(VersionedResolver):
        """Resolves plain words by the core schema, also in a document that declares another version."""

        versioned_resolver = _index_patterns(_CORE)

    class Writer(VersionedResolver):
        """Resolves words as YAML 1.1 and 1.2 do: a text is quoted if either reads it as another type."""

        versioned_resolver = _index_patterns(_CORE, _YAML_1_1)

    class Constructor(SafeConstructor):
        """Builds numbers in base ten."""

    Constructor.add_constructor(f"{_TAG}int", lambda _, node: int(node.value))
    return _Classes(
        YAML,
        YAMLError,
        _DuplicateKey,
        Reader,
        Writer,
        _define_composer(Composer, ScalarNode),
        Constructor,
        _define_representer(SafeRepresenter),
    )


class _DuplicateKey(Exception):
    pass


def _define_composer(base: Any, scalar: Any) -> Any:
    """Return a composer that refuses duplicate keys and documents that are too deep.

    Args:
        base: class ``Composer`` of the library.
        scalar: class ``ScalarNode`` of the library.
    """

    class DocumentComposer(base):  # type: ignore[misc]
        """Refuses duplicate keys and documents that are too deep."""

        depth = 0

        def compose_node(self, parent: object, index: object) -> Any:
            self.depth += 1
            if self.depth > DEEPEST:
                raise RecursionError
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def compose_mapping_node(self, anchor: object) -> Any:
            node = super().compose_mapping_node(anchor)
            lines = dict[tuple[str, str], int]()
            for key, _ in node.value:
                if isinstance(key, scalar):
                    line, name = key.start_mark.line + 1, (str(key.tag), key.value)
                    if name in lines:
                        first = lines[name]
                        where = f"line {line}" if first == line else f"lines {first} and {line}"
                        raise _DuplicateKey(f"has {key.value} twice: on {where}")
                    lines[name] = line
            return node

    return DocumentComposer


def _define_representer(base: Any) -> Any:
    """Return a representer for lists of scalars on one line, texts of several lines, and no aliases.

    Args:
        base: class ``SafeRepresenter`` of the library.
    """

    class Representer(base):  # type: ignore[misc]
        """Writes lists of scalars on one line, texts of several lines as such, and no aliases."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def represent_list(representer: Any, value: list[Any]) -> Any:
        words = all(isinstance(item, str | int | float) for item in value)
        return representer.represent_sequence(f"{_TAG}seq", value, flow_style=words)

    def represent_str(representer: Any, value: str) -> Any:
        # Readers of YAML 1.1 fold these line breaks into spaces unless they are escaped.
        style = '"' if any(mark in value for mark in "\x85\u2028\u2029") else None
        if "\n" in value and not value[0].isspace() and value.replace("\n", "").isprintable():
            style = "|"
        return representer.represent_scalar(f"{_TAG}str", value, style=style)

    Representer.add_representer(list, represent_list)
    Representer.add_representer(str, represent_str)
    return Representer


def _index_patterns(
    *tables: dict[str, tuple[str, list[str]]],
) -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Return the tags and patterns of plain words by their first character."""
    found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for table in tables:
        for tag, (pattern, first) in table.items():
            for character in first:
                found.setdefault(character, []).append((tag, re.compile(rf"(?:{pattern})\Z", re.ASCII)))
    return found


def _check_unique(pairs: list[tuple[str, object]]) -> None:
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            raise BadInput(f"has {key} twice in one place", means=_LOST, do="write it once")
        seen.add(key)


def read_document(file: BinaryIO) -> bytes:
    """Return the rest of a file that is a document; a device without an end is refused like a large file.

    Raises:
        OSError: it cannot be read.
    """
    content = file.read(LARGEST_BYTES + 1)
    _check_size(content)
    return content


def _check_size(text: str | bytes) -> None:
    if len(text) > LARGEST_BYTES:
        raise BadInput(
            f"has more than {LARGEST_BYTES} characters", do="give the path of a job file or a configuration"
        )


def _check_values(document: object) -> None:
    """Raise `BadInput` for a document that is too deep, or too large once its aliases are written out."""
    count, level = 0, [document]
    for _ in range(DEEPEST + 1):
        count += len(level)
        if count > MOST_VALUES:
            raise BadInput(
                f"describes more than {MOST_VALUES} values", do="write fewer values, without aliases"
            )
        level = [inner for value in level for inner in _list_inner(value)]
        if not level:
            return
    raise _too_deep()


def _list_inner(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _too_deep() -> BadInput:
    return BadInput(f"is nested more than {DEEPEST} levels deep", do="write it with fewer levels")
