"""The home of Elastane on this machine: the directory of all runs, and what belongs to its user."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput
from elastane.common.local_paths import refuse_url

T = TypeVar("T")


def find_home() -> Path:
    """Return ``$ELASTANE_HOME``, by default ``~/.elastane``.

    Raises:
        BadInput: it is the URL of a store.
    """
    home = os.environ.get("ELASTANE_HOME")
    if not home:
        return Path.home() / ".elastane"
    refuse_url(Path(home), "ELASTANE_HOME", do="export ELASTANE_HOME=/path/on/this/machine, or unset it")
    return Path(home)


def make_home() -> None:
    """Make the home with access for its owner only; an existing one stays as it is."""
    find_home().parent.mkdir(parents=True, exist_ok=True)
    find_home().mkdir(mode=0o700, exist_ok=True)


def find_runs_home() -> Path:
    """Return the directory of all runs: ``$ELASTANE_HOME/runs``, by default ``~/.elastane/runs``."""
    return find_home() / "runs"


def read_home_file(name: str, kind: type[T]) -> T | None:
    """Return the content of a JSON file of the home; None: there is no such file.

    Raises:
        BadInput: the file is damaged.
    """
    path = find_home() / name
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is damaged ({error})", do=f"remove {path}") from error


def write_home_file(name: str, value: msgspec.Struct) -> None:
    """Write a JSON file of the home that only its owner can read, because it may hold a token."""
    make_home()
    content = msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
    replace_file(find_home() / name, content, durable=False, mode=0o600)
