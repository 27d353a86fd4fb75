"""The directories that all machines of a run share, and the marks in them that prove it.

A mark is an empty file of a random name, which a machine of the run writes and names over the network. A
machine that sees it, and can remove it, shares the directory. No listing of tickets, checkpoints or claims
takes a mark for one of theirs.
"""

import os
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from elastane.common.untrusted_data import Decoder

PlaceName: TypeAlias = Literal["run", "checkpoints", "claims"]

LARGEST_MARKS_BYTES = 16 << 10
SECRET_MODE = 0o600
UNSEEN_S = 60.0
"""A mark that no machine has removed by then was for one that does not share the directory."""
LOOK_S = 0.1
_MARK = re.compile(r"mark-[0-9a-f]{32}")


class PlaceMark(msgspec.Struct, frozen=True):
    """A new mark.

    Args:
        place: what the directory is for.
        directory: its path on all machines.
    """

    place: PlaceName
    directory: str
    name: str


decode_marks: Decoder[tuple[PlaceMark, ...]] = Decoder(
    tuple[PlaceMark, ...], at_most_bytes=LARGEST_MARKS_BYTES
)


def find_local_directory(url: str) -> Path | None:
    """Return the directory that a path or URL names; None: it is on no file system of this machine."""
    scheme, separator, path = url.partition("://")
    if not separator:
        return Path(url)
    return Path(path) if scheme in ("file", "local") else None


def leave_marks(places: Mapping[PlaceName, Path]) -> tuple[PlaceMark, ...]:
    """Leave a mark in each place; one that this machine cannot write is left out, except that of the run.

    Raises:
        OSError: the directory of the run cannot be written.
    """
    marks = []
    for place, directory in places.items():
        try:
            marks.append(
                PlaceMark(place, str(directory), _leave_mark(directory, make=place == "checkpoints"))
            )
        except OSError:
            if place == "run":
                raise
    return tuple(marks)


def _leave_mark(directory: Path, *, make: bool) -> str:
    if make:
        # The first checkpoint would make it.
        directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("mark-*"):
        with suppress(FileNotFoundError):
            if _MARK.fullmatch(old.name) and time.time() - old.stat().st_mtime > UNSEEN_S:
                old.unlink()
    name = f"mark-{secrets.token_hex(16)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    os.close(os.open(directory / name, flags, SECRET_MODE))
    return name


def remove_mark(directory: Path, name: str, *, wait_s: float) -> bool:
    """Remove a mark, and return whether it could be seen here.

    Args:
        name: its name, as another machine says.
        wait_s: how long a network file system may take to show it.

    Raises:
        OSError: it can be seen and not removed.
    """
    if not _MARK.fullmatch(name):
        return False
    give_up = time.monotonic() + wait_s
    while not _is_listed(directory, name):
        if time.monotonic() > give_up:
            return False
        time.sleep(LOOK_S)
    (directory / name).unlink(missing_ok=True)
    return True


def _is_listed(directory: Path, name: str) -> bool:
    try:
        # Listing asks a network file system anew; a look at one name may be answered from memory.
        return name in os.listdir(directory)  # noqa: PTH208 - names, not paths
    except OSError:
        return False
