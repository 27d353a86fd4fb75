"""The code of a run, shipped to its machines: a copy in the run directory, named by the hash of its content.

The script and the working directory of every worker are in the copy, also on the machine that began the run.
So edits during the run reach no worker that starts later, and a resumed run has the code that it began with.
"""

import hashlib
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed, check_regular
from elastane.run.machines.joining.ignore_rules import IgnoreRule, find_decision, parse_rules
from elastane.run.nouns.rundir import RunDir

CODE = "code"
"""The directory of shipped code in a run directory."""
IGNORE_FILES = (".elastaneignore", ".gitignore")
"""The first one that a folder has says which files are left out in it and below."""
ALWAYS_IGNORED = (".git", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/")
MOST_FILES, MOST_BYTES = 10_000, 100 << 20
LARGEST_IGNORE_BYTES = 1 << 18
LONGEST_S = 60
"""The search for the files of the code may take this many seconds."""
DEEPEST = 100
"""The most levels of folders."""
SHOWN = 3
READABLE = 0o555
"""The permissions that a copy takes from the original."""
_ALWAYS = parse_rules(ALWAYS_IGNORED)


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

    Left out are the files that the ignore files match, in the notation of git, and `ALWAYS_IGNORED`. In each
    folder the first of `IGNORE_FILES` counts.

    Raises:
        BadInput: a link leads to anything but a file of the code, a file is not a regular one, something
            cannot be read, there is too much, or the search takes too long.
    """
    give_up_s = time.monotonic() + LONGEST_S
    found: list[CodeFile] = []
    links: list[Path] = []
    rules: dict[Path, tuple[IgnoreRule, ...]] = {}
    for folder, folders, names in os.walk(root, onerror=_refuse_unreadable):
        inside = Path(folder).relative_to(root)
        if len(inside.parts) > DEEPEST:
            raise BadInput(
                f"the folders below {root} are nested more than {DEEPEST} deep",
                do=f"leave them out in {root / IGNORE_FILES[0]}",
            )
        if own := _read_rules(root, inside):
            rules[inside] = own
        folders[:] = [name for name in folders if not _is_left_out(rules, inside / name, is_folder=True)]
        for name in (*folders, *names):
            path = inside / name
            if name in names and _is_left_out(rules, path, is_folder=False):
                continue
            if (root / path).is_symlink():
                links.append(path)
            else:
                found += _describe_file(root, path)
            # Count while walking: the user may have named a home directory.
            if len(found) + len(links) > MOST_FILES or time.monotonic() > give_up_s:
                break
        _check_limits(root, found)
        if time.monotonic() > give_up_s:
            raise BadInput(
                f"the search for the code below {root} took more than {LONGEST_S} s",
                means="there are too many files, or too many lines in an ignore file",
                do=f"leave out whole folders in {root / IGNORE_FILES[0]}",
            )
    names_of_code = {file.name for file in found}
    found += (_describe_link(root, path, names_of_code) for path in links)
    _check_limits(root, found)
    return tuple(sorted(found))


def _refuse_unreadable(error: OSError) -> None:
    raise BadInput(
        f"{error.filename} cannot be read: {error.strerror}",
        means="it is below the working directory, which is shipped",
        do="leave it out in .elastaneignore",
    ) from error


def _read_rules(root: Path, folder: Path) -> tuple[IgnoreRule, ...]:
    """Return the rules of the ignore file in a folder."""
    files = ConfinedDirectory(root)
    own = next((path for name in IGNORE_FILES if files.has_file(path := root / folder / name)), None)
    if own is None:
        return ()
    try:
        return parse_rules(files.read(own, LARGEST_IGNORE_BYTES).decode(errors="replace").split("\n"))
    except (OSError, Malformed) as error:
        raise BadInput(
            f"{own} cannot be read: {error}", do="correct it: it decides on the files that are shipped"
        ) from error


def is_never_shipped(name: str) -> bool:
    """Return whether `ALWAYS_IGNORED` leaves out a file, or a folder that it is in."""
    *folders, last = name.split("/")
    # Each of these rules is about a single part of a path.
    return bool(find_decision(_ALWAYS, (last,), is_folder=False)) or any(
        find_decision(_ALWAYS, (folder,), is_folder=True) for folder in folders
    )


def _is_left_out(rules: Mapping[Path, tuple[IgnoreRule, ...]], path: Path, *, is_folder: bool) -> bool:
    """Return whether the rules leave out a path; those of its own folder come before those above."""
    if find_decision(_ALWAYS, path.parts, is_folder=is_folder):
        return True
    for above in path.parents:
        inside = path.relative_to(above).parts
        if (decision := find_decision(rules.get(above, ()), inside, is_folder=is_folder)) is not None:
            return decision
    return False


def _describe_file(root: Path, path: Path) -> Iterator[CodeFile]:
    """Yield the description of a file; nothing for a directory, which is walked."""
    facts = (root / path).lstat()
    if stat.S_ISDIR(facts.st_mode):
        return
    if not stat.S_ISREG(facts.st_mode):
        raise BadInput(f"{path} is neither a file nor a directory", do="leave it out in .elastaneignore")
    yield CodeFile(path.as_posix(), bool(facts.st_mode & stat.S_IXUSR), facts.st_size)


def _describe_link(root: Path, path: Path, names: Collection[str]) -> CodeFile:
    """Return the description of a link to a file of the code, which is shipped as a file."""
    try:
        target, whole = (root / path).resolve(), root.resolve()
    except (OSError, RuntimeError):  # a loop
        target = whole = root / path
    if not target.is_relative_to(whole) or target.relative_to(whole).as_posix() not in names:
        raise BadInput(
            f"{path} is a link to {target}, which is not a file of the code below {root}",
            means="other machines would not have it",
            do="copy it there, or leave the link out in .elastaneignore",
        )
    facts = target.stat()
    return CodeFile(path.as_posix(), bool(facts.st_mode & stat.S_IXUSR), facts.st_size)


def open_code(root: Path, file: CodeFile) -> BufferedReader:
    """Open a file of the code; a link leads to another file of it.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    whole = root.resolve()
    path = whole / file.name
    return ConfinedDirectory(whole).open(path.resolve() if path.is_symlink() else path)


def _check_limits(root: Path, files: Iterable[CodeFile]) -> None:
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
        do=f"leave out data and results in {_name_ignore_file(root)}, written as a .gitignore",
    )


def _name_ignore_file(root: Path) -> Path:
    return next((path for name in IGNORE_FILES if (path := root / name).is_file()), root / IGNORE_FILES[0])


def compute_code_digest(root: Path, files: Iterable[CodeFile]) -> str:
    """Return the SHA-256 of some code, in hexadecimal digits.

    It is taken over a line for each file, sorted by name: the SHA-256 of its content in hexadecimal digits,
    ``x`` if its owner may execute it and ``-`` otherwise, and its name, separated by spaces and ended by a
    zero byte.

    Raises:
        OSError, ValueError: a file cannot be read.
    """
    whole = hashlib.sha256()
    for file in sorted(files):
        with open_code(root, file) as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        whole.update(format_digest_line(file, digest))
    return whole.hexdigest()


def format_digest_line(file: CodeFile, digest: str) -> bytes:
    """Return the line of a file for `compute_code_digest`; ``digest`` is that of its content."""
    mode = "x" if file.executable else "-"
    return f"{digest} {mode} {file.name}\0".encode(errors="surrogateescape")


def copy_code(root: Path, files: Iterable[CodeFile], run_dir: RunDir, digest: str) -> Path:
    """Copy code into the run directory, and return the directory of the copy.

    A file or folder in the copy can be read by the users that can read the original, and written by none.

    Raises:
        BadInput: a file has changed meanwhile, or the copy cannot be written.
    """
    files = tuple(files)
    copy = find_shipped_code(run_dir, digest)
    partial = copy.with_name(f".{copy.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        for file in files:
            _copy_file(root, file, partial)
        changed = compute_code_digest(partial, files) != digest
        _copy_folder_modes(root, files, partial)
        if not changed:
            partial.rename(copy)
    except (OSError, Malformed) as error:
        raise BadInput(
            f"cannot copy the code below {root} to {copy}: {getattr(error, 'strerror', error)}",
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


def _copy_file(root: Path, file: CodeFile, copy: Path) -> None:
    path = copy / file.name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open_code(root, file) as content:
        mode = os.fstat(content.fileno()).st_mode
        # Private until it is whole, then readable as the original is.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as to:
            shutil.copyfileobj(content, to)
            os.fchmod(to.fileno(), READABLE & mode | (0o500 if file.executable else 0o400))


def _copy_folder_modes(root: Path, files: Iterable[CodeFile], copy: Path) -> None:
    """Let other users into the folders of a copy that they can enter in the original."""
    folders = {folder for file in files for folder in Path(file.name).parents}
    for folder in sorted(folders, reverse=True):
        (copy / folder).chmod(READABLE & (root / folder).stat().st_mode | 0o700)


def find_shipped_code(run_dir: RunDir, digest: str) -> Path:
    """Return the directory of the code with this digest in a run directory."""
    return run_dir.root / CODE / digest


def check_shipped_code(run_dir: RunDir, digest: str) -> None:
    """Check that this machine sees the code of the run as it was shipped."""
    copy = find_shipped_code(run_dir, digest)
    if not has_shipped_code(copy, digest):
        raise BadInput(
            f"the code of the run in {copy} is not the shipped one",
            means="a file was changed, or this machine does not see all of the run directory",
            do="start the run again from the right code; nothing may be changed in its copy",
        )


def has_shipped_code(copy: Path, digest: str) -> bool:
    """Return whether a directory has the code with this digest, as it was shipped.

    If there is a list of its files, others do not count: a script may write its results beside them.
    """
    try:
        is_here = not copy.is_symlink() and not copy.parent.is_symlink() and copy.is_dir()
        if not is_here:
            return False
        names = _read_names(copy)
        files = _list_copied(copy) if names is None else _describe_named(copy, names)
        return compute_code_digest(copy, files) == digest
    except (OSError, ValueError):
        return False


def write_names(copy: Path, names: Iterable[str]) -> None:
    """Write the list of the files of some code beside its copy.

    It need not be trusted: of all lists, only that of the code leads to its digest.

    Raises:
        OSError: it cannot be written.
    """
    content = b"".join(name.encode(errors="surrogateescape") + b"\0" for name in names)
    replace_file(_locate_names(copy), content, durable=False, mode=0o600)


def _read_names(copy: Path) -> list[str] | None:
    """Return the names of the files of a copy; None: there is no list of them."""
    try:
        content = ConfinedDirectory(copy.parent).read(_locate_names(copy))
    except FileNotFoundError:
        return None
    return [name.decode(errors="surrogateescape") for name in content.split(b"\0") if name]


def _locate_names(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.files")


def _describe_named(copy: Path, names: Iterable[str]) -> Iterator[CodeFile]:
    """Yield the descriptions of files of a copy.

    Raises:
        OSError, Malformed: one of them is missing, or not a regular file.
    """
    for name in names:
        facts = (copy / name).lstat()
        check_regular(facts.st_mode)
        yield CodeFile(name, bool(facts.st_mode & stat.S_IXUSR), facts.st_size)


def _list_copied(copy: Path) -> Iterator[CodeFile]:
    """Yield the files of a copy; what Python writes beside them does not count.

    Raises:
        Malformed: it has a link, a pipe or a device.
    """
    for folder, folders, names in os.walk(copy):
        inside = Path(folder).relative_to(copy)
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in (*folders, *names):
            facts = (copy / inside / name).lstat()
            if not stat.S_ISDIR(facts.st_mode):
                check_regular(facts.st_mode)
                yield CodeFile((inside / name).as_posix(), bool(facts.st_mode & stat.S_IXUSR), facts.st_size)
