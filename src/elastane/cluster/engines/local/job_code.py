"""The code that a job brings with it: where the controller keeps its archive, and the copy for the job.

Each job has a copy of its own in its run directory, as ``elastane run --ship-code`` makes one. So the run is
complete without the controller, and belongs to the user of the job.
"""

from collections.abc import Callable
from pathlib import Path
from typing import IO

from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed
from elastane.run.machines.joining.code_archive import unpack_archive
from elastane.run.machines.joining.shipped_code import has_shipped_code


def locate_code_archive(home: Path, digest: str) -> Path:
    """Return where the controller keeps the archive of some code in its home."""
    return home / "code" / f"{digest}.tar.gz"


def place_code(folder: Path, digest: str, open_archive: Callable[[], IO[bytes]]) -> Path:
    """Return the directory of some code in a folder, after it was unpacked there if it was missing.

    A copy that was changed gets the files of the code again; no process of the job may use it meanwhile.

    Args:
        digest: of the code; its directory has this name.
        open_archive: opens the archive for reading, if it is needed.

    Raises:
        BadInput: the archive is missing or damaged, or a link is in the place of the folder.
        OSError: the code cannot be written now.
    """
    copy = folder / digest
    if has_shipped_code(copy, digest):
        return copy
    if folder.is_symlink():
        raise BadInput(
            f"{folder} is a symbolic link",
            means="a run writes only below its own directory; nothing was written",
            do="remove the link",
        )
    try:
        archive = open_archive()
    except FileNotFoundError as error:
        raise _make_lost_error(digest, "is missing") from error
    try:
        with archive:
            return unpack_archive(archive, folder, digest)
    except Malformed as error:
        raise _make_lost_error(digest, f"is damaged: {error}") from error


def _make_lost_error(digest: str, why: str) -> BadInput:
    return BadInput(
        f"the controller's archive of the code {digest} {why}",
        means="the job trains from that code, so it cannot start",
        do="submit the job again under another name with --ship-code, which sends the code again",
    )
