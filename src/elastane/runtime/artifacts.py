"""Files that a script writes once per run, whatever happens to its workers: samples, images, tables.

Every worker runs the script and writes the file under a name of its own. Then it renames it to the final
name, which replaces the same bytes written by another worker. So the file is there when any worker has lived
to write it, and it is never there in part. Votes compare the checksums.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastane.api.atomic_file import sync_directory, sync_file
from elastane.api.checkpoints import WrittenFile
from elastane.api.errors import BadInput, RunFailed
from elastane.api.safe_text import escape_line
from elastane.observability.model_files import measure

LONGEST_NAME = 100
MOST_FILES = 100
"""Of one step; each is in the ledger's line of the step."""
BESIDE = ".worker-"
"""Begins the name of the folder that a worker writes in."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")


def check_artifact_name(name: object) -> str:
    """Return the name of an artifact.

    Raises:
        BadInput: it could leave the folder, hide, or not be a file name everywhere.
    """
    if isinstance(name, str) and len(name) <= LONGEST_NAME and _NAME.fullmatch(name):
        return name
    shown = escape_line(name, 60) if isinstance(name, str) else f"a {type(name).__name__}"
    raise BadInput(
        f"run.artifact({shown!r}) is not the name of a file",
        means="the run puts the file into a folder of the step; a name has no folders, spaces or leading dot",
        do="use letters, digits, dots, underscores and hyphens: run.artifact('samples.png')",
    )


def remove_unfinished(folder: Path) -> None:
    """Remove what workers were writing when they died; nobody writes any more."""
    for beside in folder.glob(f"{BESIDE}*"):
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def write_artifact(
    folder: Path, step: int, name: str, worker: int
) -> Iterator[tuple[Path, list[WrittenFile]]]:
    """Give a path to write to; afterwards the file has its name in the folder of the step.

    Args:
        folder: of all artifacts.
        step: the step just made.
        name: checked.
        worker: own number.

    Yields:
        The path, and a list that gets the size and checksum once the file is in place.

    Raises:
        BadInput: the script has written no file there.
        RunFailed: the folder cannot be written to.
    """
    beside = folder / f"{BESIDE}{worker}"
    final = folder / f"step-{step}" / name
    found: list[WrittenFile] = []
    try:
        # Of this worker's: whatever it was killed over.
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        final.parent.mkdir(exist_ok=True)
        yield beside / name, found
        _check_is_file(beside / name, name)
        sync_file(beside / name)
        written = measure(beside / name)
        assert written is not None, "checked above"  # noqa: S101
        (beside / name).replace(final)
        found.append(written)
        sync_directory(final.parent)
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(folder)):
            raise  # the script's own
        raise RunFailed(
            f"the artifact {name} of step {step} could not be written: {error.strerror}",
            means="a run that goes on without it would not have the files that another history has",
            do="free space under the run directory, then: elastane run --resume",
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _check_is_file(path: Path, name: str) -> None:
    if path.is_symlink() or not path.is_file():
        what = "a folder" if path.is_dir() else "nothing"
        raise BadInput(
            f"run.artifact({name!r}): the script has written {what} to the path it was given",
            means="an artifact is one file, so that it appears as a whole or not at all",
            do=f"with run.artifact({name!r}) as path: write one file to path, such as path.write_text(text)",
        )
