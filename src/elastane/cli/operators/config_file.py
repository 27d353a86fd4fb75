"""Configurations as YAML that can be kept in git: read, checked, and written.

A plain ``18:00`` is a time of day here, and ``no`` a word: YAML 1.1, which its usual readers follow, takes
them for 1080 and for false.
"""

import re
import sys
from contextlib import suppress
from datetime import time
from pathlib import Path
from typing import Any

import msgspec

from elastane.api.config import Config
from elastane.api.differences import lean
from elastane.api.errors import BadField, BadInput
from elastane.api.reading import called, read
from elastane.cli.documents import pyyaml, read_yaml

TIME = re.compile(r"\d\d?:\d\d(?::\d\d)?")
DIGITS = list("0123456789")
PLAIN = {
    "tag:yaml.org,2002:null": (re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    "tag:yaml.org,2002:bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    "tag:yaml.org,2002:int": (re.compile(r"[-+]?\d+"), ["-", "+", *DIGITS]),
    "tag:yaml.org,2002:float": (
        re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?"),
        ["-", "+", ".", *DIGITS],
    ),
}
"""What a plain word may be besides text: the core schema of YAML 1.2."""


def read_config(name: str) -> Config:
    """The configuration in a file; ``-``: on stdin.

    Raises:
        BadInput: it cannot be read, or is no configuration; with the field and what to write.
    """
    shown = "stdin" if name == "-" else name
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(f"cannot read {name}: {why}", do="check the path") from error
    try:
        return parse_config(text)
    except BadField as error:
        raise BadInput(f"{shown}: {error.what}", means=error.means, do=error.do) from error
    except BadInput as error:
        raise BadInput(f"{shown} {error.what}", means=error.means, do=error.do) from error


def parse_config(text: str) -> Config:
    """The configuration that a text describes.

    Raises:
        BadInput: it describes none.
    """
    document = parse_yaml(text)
    if not isinstance(document, dict):
        raise BadInput(
            "holds no configuration",
            means=f"it is {called(document)}, not kinds of documents",
            do="begin with what `elastane config show` prints",
        )
    if document.get("version", 1) != 1:
        raise BadInput(f"is of version {document['version']!r}", do="write version: 1, or upgrade elastane")
    for when in _whens(document):
        for field in when.keys() & {"start", "end"}:
            when[field] = _time(when[field])
    return read(document, Config, "configuration")


def format_config(config: Config) -> str:
    """Return a configuration as YAML for `parse_config`; rules with their defaults too."""
    rules = {} if config.rules is None else {"rules": msgspec.to_builtins(config.rules)}
    return format_yaml({"version": config.version} | lean(config) | rules)


def parse_yaml(text: str) -> object:
    """What YAML describes.

    Raises:
        BadInput: it is not YAML, or a key is there twice.
    """
    return read_yaml(text, _loader(pyyaml()))


def format_yaml(value: object) -> str:
    """YAML of mappings, lists, texts and numbers; lists of words on one line."""
    yaml = pyyaml("YAML")
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    dumper.add_representer(list, _flow)
    dumper.add_representer(str, _escaped)
    # Quoted is what either version of YAML would not take for a text, so that any reader finds the same.
    for tag, (pattern, first) in {**PLAIN, "!time": (TIME, DIGITS)}.items():
        dumper.add_implicit_resolver(tag, _whole(pattern), first)
    found: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)
    if found.replace("\n", "").isprintable():
        return found
    # With escapes, in place of what a terminal would obey; the values are the same.
    escaped: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=False, width=100)
    return escaped


def _flow(dumper: Any, value: list[Any]) -> Any:  # noqa: ANN401 - of a library without types
    words = all(isinstance(one, str | int | float) for one in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=words)


def _escaped(dumper: Any, value: str) -> Any:  # noqa: ANN401
    """Line breaks that only YAML 1.1 knows are folded into spaces unless they are escaped."""
    style = '"' if any(mark in value for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _loader(yaml: Any) -> Any:  # noqa: ANN401
    loader: Any = type("Loader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {}})
    for tag, (pattern, first) in PLAIN.items():
        loader.add_implicit_resolver(tag, _whole(pattern), first)
    # Without the octal numbers that nobody means.
    loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
    return loader


def _whole(pattern: re.Pattern[str]) -> re.Pattern[str]:
    return re.compile(f"(?:{pattern.pattern})$")


def _whens(document: dict[Any, Any]) -> list[dict[Any, Any]]:
    """The times of all reservations, as far as they are any."""
    reservations = document.get("reservations") or ()
    found = [one.get("when") for one in reservations if isinstance(one, dict)]
    return [when for when in found if isinstance(when, dict) and when.get("type") == "weekly"]


def _time(value: object) -> object:
    """A time of day with or without seconds; whatever is none as it is."""
    if isinstance(value, str) and TIME.fullmatch(value):
        with suppress(ValueError):
            return time.fromisoformat(value.zfill(5))
    return value
