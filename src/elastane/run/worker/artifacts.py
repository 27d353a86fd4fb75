"""Artifacts: files that a script writes once per run, such as samples, images and tables.

Every worker runs the script and writes the file under a temporary name. Then the worker renames it to the
final name, which replaces the same bytes of another worker. So the file exists as soon as one worker has
written it, and it is always complete. Votes compare the checksums.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastane.common.atomic_file import sync_directory, sync_file
from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput, RunFailed
from elastane.common.safe_text import escape_line
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.observability.model_files import measure_file

LONGEST_NAME = 100
MOST_FILES = 100
"""The limit of artifacts per step; the ledger's line of the step names each artifact."""
SCRATCH_PREFIX = ".worker-"
"""The prefix of a worker's folder for unfinished files."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")


def check_artifact_name(name: object) -> str:
    """Return the name of an artifact.

    Raises:
        BadInput: the name could lead out of the folder, be hidden, or be invalid on some systems.
    """
    if isinstance(name, str) and len(name) <= LONGEST_NAME and _NAME.fullmatch(name):
        return name
    text = escape_line(name, 60) if isinstance(name, str) else f"a {type(name).__name__}"
    raise BadInput(
        f"run.artifact was given an invalid file name: {text!r}",
        means="each step has a folder for its files; a name has no folders, no spaces and no leading dot",
        do="use letters, digits, dots, underscores and hyphens: run.artifact('samples.png')",
    )


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files of dead workers; call this when no worker is writing."""
    for scratch in folder.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def write_artifact(
    folder: Path, step: int, name: str, worker: int, process: int = 0
) -> Iterator[tuple[Path, list[WrittenFile]]]:
    """Yield a path to write to; afterwards move the file to its name in the folder of the step.

    Args:
        step: the last committed step.
        process: the number of this process in its worker.

    Yields:
        The path, and a list that receives the size and checksum of the file in its place.

    Raises:
        RunFailed: the worker cannot write to the folder.
    """
    scratch = folder / f"{SCRATCH_PREFIX}{worker}.{process}"
    final = folder / f"step-{step}" / name
    files: list[WrittenFile] = []
    try:
        # An earlier process of this worker may have been killed during a write.
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        final.parent.mkdir(exist_ok=True)
        yield scratch / name, files
        _check_is_file(scratch / name, name)
        sync_file(scratch / name)
        file = measure_file(ConfinedDirectory(scratch), scratch / name)
        assert file is not None, "checked above"
        (scratch / name).replace(final)
        files.append(file)
        sync_directory(final.parent)
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(folder)):
            raise  # an error of the script
        raise RunFailed(
            f"cannot write the artifact {name} of step {step}: {error.strerror}",
            means="the run cannot go on: its files would differ from those of a run without this error",
            do="free space under the run directory, and resume with elastane run --resume",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_is_file(path: Path, name: str) -> None:
    if path.is_symlink() or not path.is_file():
        content = "a folder" if path.is_dir() else "no file"
        raise BadInput(
            f"run.artifact({name!r}): the script wrote {content} at the path that it got",
            means="an artifact is one file, which appears complete or not at all",
            do=f"write one file: with run.artifact({name!r}) as path: path.write_text(text)",
        )
