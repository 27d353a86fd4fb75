"""Configurations as YAML that can be kept in git: read, checked, and written.

A plain ``18:00`` is a time of day here, and ``no`` a word: YAML 1.1, which its usual reader follows, takes them for
1080 and for false.
"""

import re
import sys
from datetime import time
from pathlib import Path
from typing import Any

from elastane.api.errors import BadField, BadInput
from elastane.api.reading import read
from elastane.api.wire import Config
from elastane.cli.operators.differences import lean

TIME = re.compile(r"\d\d?:\d\d(?::\d\d)?")
PLAIN = {
    "tag:yaml.org,2002:null": (re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    "tag:yaml.org,2002:bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    "tag:yaml.org,2002:int": (re.compile(r"[-+]?\d+"), list("-+0123456789")),
    "tag:yaml.org,2002:float": (
        re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?"),
        list("-+.0123456789"),
    ),
    "!time": (TIME, list("0123456789")),
}
"""What a plain word may be besides text: the core schema of YAML 1.2, and times of day."""


def read_config(name: str) -> Config:
    """The configuration in a file; ``-``: on stdin.

    Raises:
        BadInput: it cannot be read, or is no configuration; with the field and what to write.
    """
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(f"cannot read {name}: {why}", do="check the path") from error
    try:
        return config_of(text)
    except BadField as error:
        raise BadInput(f"{name}: {error.what}", means=error.means, do=error.do) from error
    except BadInput as error:
        raise BadInput(f"{name} {error.what}", means=error.means, do=error.do) from error


def config_of(text: str) -> Config:
    """The configuration that a text describes.

    Raises:
        BadInput: it describes none.
    """
    document = value_of(text)
    if not isinstance(document, dict):
        raise BadInput(
            "holds no configuration",
            means=f"it is a {type(document).__name__}, not kinds of documents",
            do="begin with what `elastane config show` prints",
        )
    if document.get("version", 1) != 1:
        raise BadInput(f"is of version {document['version']!r}", do="write version: 1, or upgrade elastane")
    return read(document, Config, "configuration")


def yaml_of(config: Config) -> str:
    """What `config_of` reads the same configuration from."""
    return text_of({"version": config.version} | lean(config))


def value_of(text: str) -> object:
    """What YAML describes.

    Raises:
        BadInput: it is not YAML.
    """
    yaml = _yaml()
    try:
        return yaml.load(text, Loader=_loader(yaml))  # noqa: S506 - a safe one with fewer types
    except yaml.YAMLError as error:
        raise BadInput("is not YAML: " + " ".join(str(error).split()), do="correct it") from error


def text_of(value: object) -> str:
    """YAML of mappings, lists, texts and numbers; lists of words on one line."""
    yaml = _yaml()
    dumper = type("Dumper", (yaml.SafeDumper,), {})
    dumper.add_representer(list, _flow)
    found: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)
    return found


def _flow(dumper: Any, value: list[Any]) -> Any:  # noqa: ANN401 - of a library without types
    words = all(isinstance(one, str | int | float) for one in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=words)


def _loader(yaml: Any) -> Any:  # noqa: ANN401
    loader = type("Loader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {}})
    for tag, (pattern, first) in PLAIN.items():
        loader.add_implicit_resolver(tag, re.compile(f"(?:{pattern.pattern})$"), first)
    loader.add_constructor("!time", _time)
    return loader


def _time(_: object, node: Any) -> time:  # noqa: ANN401
    hour, minute, *second = map(int, node.value.split(":"))
    try:
        return time(hour, minute, *second)
    except ValueError as error:
        raise BadInput(f"has the time {node.value}: {error}", do="write for example 18:00") from error


def _yaml() -> Any:  # noqa: ANN401
    try:
        import yaml  # noqa: PLC0415 - few verbs need it
    except ImportError as error:
        raise BadInput(
            "to read and write YAML, pyyaml must be installed", do="pip install 'elastane[client]'"
        ) from error
    return yaml
