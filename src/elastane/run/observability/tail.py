"""Incremental reading of a file to which another process appends."""

import os
from pathlib import Path
from typing import BinaryIO

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed

AT_ONCE_BYTES = 64 << 20
LONGEST_LINE_BYTES = 16 << 20
"""A longer line is skipped, because Elastane writes none."""


def read_end_of_text(files: ConfinedDirectory, path: Path, within_bytes: int) -> str:
    """Return at most the last ``within_bytes`` of a text file below a run directory, stripped.

    Raises:
        Malformed: the path does not lead to a regular file.
        OSError: it cannot be read.
    """
    with files.open(path, in_part=True) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - within_bytes))
        return file.read(within_bytes).decode(errors="replace").strip()


class Tail:
    """Reads the bytes appended since the last reading; the file need not exist yet.

    Args:
        files: the run directory, which has the file in it or below it.
        path: of the file.
        within_bytes: the most bytes that a reading takes from the end of the file; earlier lines are skipped.
            None: no limit.
    """

    def __init__(self, files: ConfinedDirectory, path: Path, within_bytes: int | None = None) -> None:
        self._files, self.path = files, path
        self._offset_bytes = 0
        self._torn = b""
        self._within_bytes = within_bytes
        self._longest_bytes = min(LONGEST_LINE_BYTES, within_bytes or LONGEST_LINE_BYTES)
        self._in_long_line = False

    def read_new_bytes(self) -> bytes:
        """Return the bytes appended since the last reading, at most `AT_ONCE_BYTES`; the rest comes next.

        A file that has become shorter is read from its beginning.

        Raises:
            BadInput: its path does not lead to a regular file.
            OSError: it cannot be read.
        """
        try:
            with self._files.open(self.path, in_part=self._within_bytes is not None) as file:
                size_bytes = file.seek(0, os.SEEK_END)
                if size_bytes < self._offset_bytes:
                    self._offset_bytes, self._torn, self._in_long_line = 0, b"", False
                if self._within_bytes is not None:
                    self._skip_to(file, size_bytes - self._within_bytes)
                file.seek(self._offset_bytes)
                fresh = file.read(AT_ONCE_BYTES)
        except FileNotFoundError:
            return b""
        except Malformed as error:
            raise BadInput(f"{self.path} cannot be followed: {error}") from error
        self._offset_bytes += len(fresh)
        return fresh

    def _skip_to(self, file: BinaryIO, skipped_bytes: int) -> None:
        if skipped_bytes > self._offset_bytes:
            # Start at the byte before: if it ends a line, the next line is complete.
            file.seek(skipped_bytes - 1)
            passed = file.readline(self._longest_bytes)
            self._offset_bytes = skipped_bytes - 1 + len(passed)
            self._torn, self._in_long_line = b"", not passed.endswith(b"\n")

    def read_new_lines(self, *, at_end: bool = False) -> list[bytes]:
        """Return the complete lines appended since the last reading, without newlines and too long lines.

        A torn line waits for its rest. With ``at_end`` there is no rest, so it counts as a line.

        Raises:
            BadInput: its path does not lead to a regular file.
            OSError: it cannot be read.
        """
        lines = self._split_lines(self.read_new_bytes())
        while at_end and (fresh := self.read_new_bytes()):
            lines += self._split_lines(fresh)
        if at_end and self._torn:
            lines.append(self._torn)
            self._torn = b""
        return lines

    def _split_lines(self, fresh: bytes) -> list[bytes]:
        *whole, self._torn = (self._torn + fresh).split(b"\n")
        if self._in_long_line and whole:
            del whole[0]
            self._in_long_line = False
        if self._in_long_line or len(self._torn) > self._longest_bytes:
            self._torn, self._in_long_line = b"", True
        return [line for line in whole if len(line) <= self._longest_bytes]
