"""Paths on this machine, as users type them; they may have typed the URL of a store."""

import os
import re
from pathlib import Path

from elastane.common.errors import BadInput

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")


def refuse_url(path: Path, option: str, *, do: str) -> None:
    """Refuse a URL such as ``s3://bucket/path``, from which a path would make the local folder ``s3:``.

    Args:
        path: as typed; two slashes have become one.
        option: through which it was typed.
        do: advice for the user of a store.
    """
    scheme, *names = path.parts or ("",)
    if not names or not SCHEME.fullmatch(scheme):
        return
    rest = "/".join(names)
    if scheme == "file:":
        do = f"write the path: /{rest}"
    raise BadInput(
        f"{option} is the URL {scheme}//{rest}, and this must be a directory on this machine",
        means=f"a local folder with the name {scheme} would have been made; nothing was written",
        do=do,
    )


def make_absolute(path: str) -> str:
    """Return the absolute path of a file; empty if none was typed."""
    return os.path.abspath(path) if path else ""  # noqa: PTH100 - links stay as they are
