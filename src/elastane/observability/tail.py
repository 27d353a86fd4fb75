"""Following a file that another process appends to."""

from pathlib import Path
from typing import BinaryIO


class Tail:
    """Reads what was appended since the last look; the file need not exist yet.

    Args:
        path: of the file.
        within_bytes: from its end at the first look; what stands before is passed over, up to the next line.
            None: all of it is read.
    """

    def __init__(self, path: Path, within_bytes: int | None = None) -> None:
        self.path = path
        self._offset_bytes = 0
        self._torn = b""
        self._within_bytes = within_bytes

    def new_bytes(self) -> bytes:
        """Everything appended since the last look. A file that shrank is read from its beginning."""
        try:
            with self.path.open("rb") as file:
                size_bytes = file.seek(0, 2)
                if size_bytes < self._offset_bytes:
                    self._offset_bytes, self._torn = 0, b""
                if self._within_bytes is not None:
                    self._pass_over(file, size_bytes - self._within_bytes)
                file.seek(self._offset_bytes)
                fresh = file.read()
        except FileNotFoundError:
            return b""
        self._offset_bytes += len(fresh)
        return fresh

    def _pass_over(self, file: BinaryIO, skipped_bytes: int) -> None:
        self._within_bytes = None
        if skipped_bytes > 0:
            file.seek(skipped_bytes)
            self._offset_bytes = skipped_bytes + len(file.readline())

    def new_lines(self, *, at_end: bool = False) -> list[bytes]:
        """Whole lines appended since the last look, newlines removed.

        A torn tail waits for its rest; ``at_end`` no rest will come, and it counts as a line.
        """
        fresh = self.new_bytes()
        *whole, self._torn = (self._torn + fresh).split(b"\n")
        if at_end and self._torn:
            whole.append(self._torn)
            self._torn = b""
        return whole
