"""Reader and writer of configurations in YAML."""

import re
import sys
from contextlib import nullcontext, suppress
from datetime import time
from pathlib import Path
from typing import Any

import msgspec

from elastane.cluster.nouns.config import Config
from elastane.cluster.nouns.differences import build_lean_document
from elastane.common.document_parser import describe_type, parse_document
from elastane.common.documents import format_yaml, read_document, read_yaml
from elastane.common.errors import BadField, BadInput

TIME = re.compile(r"\d\d?:\d\d(?::\d\d)?")


def read_config(name: str) -> Config:
    """Return the configuration of a file; ``-`` is stdin.

    Raises:
        BadInput: the file cannot be read or is not a configuration; the error names the field and the remedy.
    """
    shown = "stdin" if name == "-" else name
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            return parse_config(read_document(file).decode())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise BadInput(f"cannot read {name}: {why}", do="check the path") from error
    except BadField as error:
        raise BadInput(f"{shown}: {error.what}", means=error.means, do=error.do) from error
    except BadInput as error:
        raise BadInput(f"{shown} {error.what}", means=error.means, do=error.do) from error


def parse_config(text: str) -> Config:
    """Return the configuration that a YAML text describes."""
    document = read_yaml(text)
    if not isinstance(document, dict):
        raise BadInput(
            "is not a configuration",
            means=f"it is {describe_type(document)}, not a mapping from kinds of documents to documents",
            do="start from the output of `elastane config show`",
        )
    if document.get("version", 1) != 1:
        raise BadInput(f"has version {document['version']!r}", do="write version: 1, or upgrade elastane")
    for when in _list_weekly_times(document):
        for field in when.keys() & {"start", "end"}:
            when[field] = _parse_time_of_day(when[field])
    return parse_document(document, Config, "configuration")


def format_config(config: Config) -> str:
    """Return a configuration as YAML for `parse_config`; rules are written with their defaults."""
    rules = {} if config.rules is None else {"rules": msgspec.to_builtins(config.rules)}
    return format_yaml({"version": config.version} | build_lean_document(config) | rules)


def _list_weekly_times(document: dict[Any, Any]) -> list[dict[Any, Any]]:
    """Return the times of all weekly reservations in a document that is not checked yet."""
    reservations = document.get("reservations") or ()
    found = [reservation.get("when") for reservation in reservations if isinstance(reservation, dict)]
    return [when for when in found if isinstance(when, dict) and when.get("type") == "weekly"]


def _parse_time_of_day(value: object) -> object:
    """Return a time of day, with or without seconds, as a time; any other value unchanged."""
    if isinstance(value, str) and TIME.fullmatch(value):
        with suppress(ValueError):
            return time.fromisoformat(value.zfill(5))
    return value
