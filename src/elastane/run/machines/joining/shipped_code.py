"""The code of a run, shipped to its machines: a copy in the run directory, named by the hash of its content.

The script and the working directory of every worker are in the copy, also on the machine that began the run.
So edits during the run reach no worker that starts later, and a resumed run has the code that it began with.
"""

import hashlib
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from elastane.common.errors import BadInput
from elastane.common.extras import require
from elastane.run.nouns.rundir import RunDir

CODE = "code"
"""The directory of shipped code in a run directory."""
IGNORE_FILES = (".elastaneignore", ".gitignore")
"""The first one that exists at the root says which files are left out."""
ALWAYS_IGNORED = (".git/", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/")
MOST_FILES, MOST_BYTES = 10_000, 100 << 20
SHOWN = 3


class CodeFile(msgspec.Struct, frozen=True, order=True):
    """A file of the code.

    Args:
        name: its path from the root, with slashes.
        executable: its owner may execute it.
    """

    name: str
    executable: bool
    size_bytes: int


def list_code(root: Path) -> tuple[CodeFile, ...]:
    """Return the files of the code below a directory, sorted by name.

    Left out are the files that the ignore file matches, in the notation of git, and `ALWAYS_IGNORED`.

    Raises:
        BadInput: a link leads out of the directory, a file is not a regular one, or there is too much.
        MissingExtra: the package that reads ignore files is not installed.
    """
    require("nodes", "--ship-code leaves out what the ignore file names")
    from pathspec import GitIgnoreSpec

    own = next((path for name in IGNORE_FILES if (path := root / name).is_file()), None)
    lines = [] if own is None else own.read_text(errors="replace").splitlines()
    spec = GitIgnoreSpec.from_lines([*ALWAYS_IGNORED, *lines])
    found: list[CodeFile] = []
    for folder, folders, names in os.walk(root):
        inside = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if not spec.match_file(f"{(inside / name).as_posix()}/")]
        for name in (*folders, *names):
            path = inside / name
            if not spec.match_file(path.as_posix()):
                found += _describe_file(root, path)
        # Count while walking: the user may have named a home directory.
        _check_limits(root, found, own)
    return tuple(sorted(found))


def _describe_file(root: Path, path: Path) -> Iterator[CodeFile]:
    """Yield the description of a file; nothing for a directory, which is walked."""
    whole = root / path
    if whole.is_symlink():
        target = whole.resolve()
        if not target.is_file() or not target.is_relative_to(root.resolve()):
            raise BadInput(
                f"{path} is a link to {target}, which is not a file below {root}",
                means="other machines would not have it",
                do="copy it there, or leave the link out in .elastaneignore",
            )
    elif whole.is_dir():
        return
    facts = whole.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise BadInput(f"{path} is neither a file nor a directory", do="leave it out in .elastaneignore")
    yield CodeFile(path.as_posix(), bool(facts.st_mode & stat.S_IXUSR), facts.st_size)


def _check_limits(root: Path, files: Iterable[CodeFile], ignore_file: Path | None) -> None:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for file in files:
        top = file.name.partition("/")[0]
        sizes[top] += file.size_bytes
        counts[top] += 1
    count, size_bytes = counts.total(), sizes.total()
    if count <= MOST_FILES and size_bytes <= MOST_BYTES:
        return
    most = sizes if size_bytes > MOST_BYTES else counts
    names = ", ".join(name for name, _ in most.most_common(SHOWN))
    raise BadInput(
        f"the code below {root} has more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB; most in {names}",
        means="it is copied into the run directory, for all machines",
        do=f"leave out data and results in {ignore_file or root / IGNORE_FILES[0]}, written as a .gitignore",
    )


def compute_code_digest(root: Path, files: Iterable[CodeFile]) -> str:
    """Return the SHA-256 of some code, in hexadecimal digits.

    It is taken over a line for each file, sorted by name: the SHA-256 of its content in hexadecimal digits,
    ``x`` if its owner may execute it and ``-`` otherwise, and its name, separated by spaces and ended by a
    zero byte.

    Raises:
        OSError: a file cannot be read.
    """
    whole = hashlib.sha256()
    for file in sorted(files):
        with (root / file.name).open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        mode = "x" if file.executable else "-"
        whole.update(f"{digest} {mode} {file.name}\0".encode(errors="surrogateescape"))
    return whole.hexdigest()


def copy_code(root: Path, files: Iterable[CodeFile], run_dir: RunDir, digest: str) -> Path:
    """Copy code into the run directory, and return the directory of the copy.

    Raises:
        BadInput: a file has changed meanwhile, or the copy cannot be written.
    """
    files = tuple(files)
    copy = find_shipped_code(run_dir, digest)
    partial = copy.with_name(f".{copy.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        for file in files:
            path = partial / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / file.name, path)
            path.chmod(0o555 if file.executable else 0o444)
        changed = compute_code_digest(partial, files) != digest
        if not changed:
            partial.rename(copy)
    except OSError as error:
        raise BadInput(
            f"cannot copy the code below {root} to {copy}: {error.strerror}",
            means="nothing was started",
            do="check the file system of the run directory",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if changed:
        raise BadInput(
            f"the code below {root} has changed while it was copied",
            means="the machines of a run need one state of the code",
            do="start the run again",
        )
    return copy


def find_shipped_code(run_dir: RunDir, digest: str) -> Path:
    """Return the directory of the code with this digest in a run directory."""
    return run_dir.root / CODE / digest


def check_shipped_code(run_dir: RunDir, digest: str) -> None:
    """Check that this machine sees the code of the run as it was shipped."""
    copy = find_shipped_code(run_dir, digest)
    try:
        seen = compute_code_digest(copy, _list_copied(copy)) if copy.is_dir() else ""
    except OSError as error:
        seen = error.strerror or "unreadable"
    if seen != digest:
        raise BadInput(
            f"the code of the run in {copy} is not the shipped one",
            means="a file was changed, or this machine does not see all of the run directory",
            do="start the run again from the right code; nothing may be changed in its copy",
        )


def _list_copied(copy: Path) -> Iterator[CodeFile]:
    """Yield the files of a copy; what Python writes beside them does not count."""
    for path in copy.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            facts = path.stat()
            name = path.relative_to(copy).as_posix()
            yield CodeFile(name, bool(facts.st_mode & stat.S_IXUSR), facts.st_size)
