"""Archives of code: how shipped code travels to a machine that has no directory in common with its sender.

An archive is a tar file, compressed as gzip does. It has a header and the content of each file, in the order
of the names, and nothing else: no folders, links or devices. The same code always has the same archive.

The sender of an archive may be hostile. So `tarfile` decodes single headers here, and nothing more: its
readers accept links, sparse files and records of any length.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import IO

from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed
from elastane.run.machines.joining.shipped_code import (
    DEEPEST,
    LONGEST_S,
    MOST_BYTES,
    MOST_FILES,
    CodeFile,
    format_digest_line,
    is_never_shipped,
    open_code,
    write_names,
)

LONGEST_NAME_BYTES, LONGEST_PART_BYTES = 4095, 255
BLOCK_BYTES = tarfile.BLOCKSIZE
LARGEST_ARCHIVE_BYTES = MOST_BYTES + MOST_FILES * (LONGEST_NAME_BYTES + 5 * BLOCK_BYTES)
"""Before its compression, and after it. A file has two headers, a long name, and padding."""
CHUNK_BYTES = 1 << 16
LEVEL = 6
GZIP = zlib.MAX_WBITS + 16
"""For zlib: with the header and the checksum of gzip; the header has no time."""


# -- writing -------------------------------------------------------------------------------------------------


def write_archive(root: Path, files: Iterable[CodeFile], archive: IO[bytes]) -> str:
    """Write the archive of some code, and return the digest of the files as they were read.

    Args:
        root: directory of the code.
        files: see `elastane.run.machines.joining.shipped_code.list_code`.
        archive: opened for writing.

    Raises:
        BadInput: a file has changed since it was listed.
        OSError, ValueError: a file cannot be read, or the archive cannot be written.
    """
    compressor = zlib.compressobj(LEVEL, wbits=GZIP)
    whole = hashlib.sha256()
    for file in sorted(files):
        archive.write(compressor.compress(_encode_header(file)))
        content = hashlib.sha256()
        left = file.size_bytes
        with open_code(root, file) as source:
            while left and (piece := source.read(min(left, CHUNK_BYTES))):
                left -= len(piece)
                content.update(piece)
                archive.write(compressor.compress(piece))
        if left:
            raise BadInput(
                f"{file.name} has become shorter while it was read",
                means="the code must not change before it is sent; nothing was started",
                do="start again",
            )
        archive.write(compressor.compress(bytes(-file.size_bytes % BLOCK_BYTES)))
        whole.update(format_digest_line(file, content.hexdigest()))
    archive.write(compressor.compress(bytes(2 * BLOCK_BYTES)))
    archive.write(compressor.flush())
    return whole.hexdigest()


def _encode_header(file: CodeFile) -> bytes:
    header = tarfile.TarInfo(file.name)
    header.size = file.size_bytes
    header.mode = 0o755 if file.executable else 0o644
    return header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


# -- reading -------------------------------------------------------------------------------------------------


def check_archive(archive: IO[bytes], digest: str) -> None:
    """Check that an archive is that of the code with a digest. It is read to its end, and nothing is written.

    Raises:
        Malformed: it is damaged, too large or too slow to read, has more than files of code, or other code.
    """
    _read_archive(archive, digest, lambda _: nullcontext())


def unpack_archive(archive: IO[bytes], folder: Path, digest: str) -> Path:
    """Unpack the archive of some code; return the directory of the code, which is named by its digest.

    It belongs to this user alone, and is for reading. It is there once the archive was read to its end and
    checked. In a directory that is there already, the files of the code are replaced, and others stay: a
    script may have written its results there.

    Args:
        archive: opened for reading.
        folder: in which the directory is made; other code in it stays.
        digest: of the code.

    Raises:
        Malformed: see `check_archive`.
        OSError: the code cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{digest[:12]}.", suffix=".partial", dir=folder))
    try:
        names = _read_archive(archive, digest, lambda file: _create_file(partial, file))
        unpacked = folder / digest
        if unpacked.is_dir() and not unpacked.is_symlink():
            _replace_files(unpacked, partial)
        else:
            unpacked.unlink(missing_ok=True)
            partial.rename(unpacked)
        write_names(unpacked, names)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return unpacked


def _replace_files(old: Path, new: Path) -> None:
    """Move all files of a directory into another one, where no link leads out of it afterwards."""
    for folder, _, names in os.walk(new):
        place = old / Path(folder).relative_to(new)
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
            place.mkdir(mode=0o700)
        for name in names:
            Path(folder, name).replace(place / name)


def _create_file(folder: Path, file: CodeFile) -> IO[bytes]:
    """Create a file below a folder that this process has made, and so without links."""
    path = folder / file.name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o500 if file.executable else 0o400), "wb")


def _read_archive(
    archive: IO[bytes], digest: str, create: Callable[[CodeFile], AbstractContextManager[IO[bytes] | None]]
) -> list[str]:
    """Read an archive to its end, and return the names of its files; see `check_archive`."""
    source = _Inflated(archive)
    names: list[str] = []
    whole = hashlib.sha256()
    for file in _read_headers(source):
        content = hashlib.sha256()
        left = file.size_bytes
        with create(file) as copy:
            while left:
                piece = source.read(min(left, CHUNK_BYTES))
                left -= len(piece)
                content.update(piece)
                if copy is not None:
                    copy.write(piece)
        source.read(-file.size_bytes % BLOCK_BYTES)
        whole.update(format_digest_line(file, content.hexdigest()))
        names.append(file.name)
    source.check_end()
    if whole.hexdigest() != digest:
        raise Malformed(f"it has the code {whole.hexdigest()}")
    return names


def _read_headers(source: "_Inflated") -> Iterator[CodeFile]:
    """Yield the description of each file. The caller reads its content before it asks for the next one."""
    names: set[str] = set()
    before, size_bytes = "", 0
    while (header := _read_header(source)) is not None:
        name = header.name
        if header.type == tarfile.GNUTYPE_LONGNAME:
            name, header = _read_long_name(source, header.size), _read_header(source)
        if header is None or header.type != tarfile.REGTYPE or header.size < 0:
            raise Malformed("it has something else than a file")
        _check_name(name)
        if name <= before:
            raise Malformed("its files are not in the order of their names, or one is there twice")
        *folders, _ = name.split("/")
        if not names.isdisjoint(accumulate(folders, "{}/{}".format)):
            raise Malformed("one of its files is a folder, too")
        names.add(name)
        before, size_bytes = name, size_bytes + header.size
        if len(names) > MOST_FILES or size_bytes > MOST_BYTES:
            raise Malformed(f"it has more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB")
        yield CodeFile(name, bool(header.mode & 0o100), header.size)


def _read_header(source: "_Inflated") -> tarfile.TarInfo | None:
    """Return the next header; None: the archive has no further file."""
    block = source.read(BLOCK_BYTES)
    if not any(block):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise Malformed("one of its headers is damaged") from error


def _read_long_name(source: "_Inflated", size_bytes: int) -> str:
    if not 0 < size_bytes <= LONGEST_NAME_BYTES + 1:
        raise Malformed(f"it has a name of more than {LONGEST_NAME_BYTES} bytes")
    name = source.read(size_bytes)
    source.read(-size_bytes % BLOCK_BYTES)
    return name.removesuffix(b"\0").decode("utf-8", "surrogateescape")


def _check_name(name: str) -> None:
    """Check that a name is a path from the root of the code to a file of it, in the usual spelling."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in name:
        raise Malformed("it has a name that leads out of the code, or is not in the usual spelling")
    encoded = [part.encode("utf-8", "surrogateescape") for part in parts]
    if (
        len(parts) > DEEPEST + 1
        or max(map(len, encoded)) > LONGEST_PART_BYTES
        or sum(map(len, encoded)) + len(encoded) > LONGEST_NAME_BYTES
    ):
        raise Malformed("it has a name that is too long, or nested too deeply")
    if is_never_shipped(name):
        # The check of a copy does not count what Python compiles.
        raise Malformed("it has a file that is never shipped, such as a compiled one")


class _Inflated:
    """The content of a compressed file, read once from its beginning to its end.

    Args:
        archive: opened for reading; its first byte is the next one.
    """

    def __init__(self, archive: IO[bytes]) -> None:
        self._archive = archive
        self._inflate = zlib.decompressobj(wbits=GZIP)
        self._rest = b""
        self._left_bytes = LARGEST_ARCHIVE_BYTES
        self._give_up_s = time.monotonic() + LONGEST_S

    def read(self, size_bytes: int) -> bytes:
        """Return exactly this many bytes, at most `CHUNK_BYTES`.

        Raises:
            Malformed: there are fewer, or the archive is too large or too slow.
        """
        while len(self._rest) < size_bytes:
            if not (piece := self._read_piece()):
                raise Malformed("it ends too early")
            self._rest += piece
        found, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
        return found

    def check_end(self) -> None:
        """Check that only zeros follow, and that the checksum of the content is right.

        Raises:
            Malformed: something follows, or the checksum differs.
        """
        rest = self._rest
        while rest or (rest := self._read_piece()):
            if rest.strip(b"\0"):
                raise Malformed("something follows its last file")
            rest = b""
        if self._inflate.unused_data or self._archive.read(1):
            raise Malformed("something follows its end")

    def _read_piece(self) -> bytes:
        """Return the next bytes; empty: the compressed data has ended, and its checksum is right."""
        while not self._inflate.eof:
            if time.monotonic() > self._give_up_s:
                raise Malformed(f"reading it took more than {LONGEST_S} s")
            raw = self._inflate.unconsumed_tail or self._archive.read(CHUNK_BYTES)
            try:
                piece = self._inflate.decompress(raw, CHUNK_BYTES)
            except zlib.error as error:
                raise Malformed("it is not compressed as gzip does, or is damaged") from error
            if not (raw or piece or self._inflate.eof):
                raise Malformed("it ends too early")
            self._left_bytes -= len(piece)
            if self._left_bytes < 0:
                raise Malformed(f"it has more than {LARGEST_ARCHIVE_BYTES} bytes")
            if piece:
                return piece
        return b""
