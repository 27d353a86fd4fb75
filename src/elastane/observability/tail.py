"""Following a file that another process appends to."""

from pathlib import Path


class Tail:
    """Reads what was appended since the last look; the file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset_bytes = 0
        self._torn = b""

    def new_bytes(self) -> bytes:
        """Everything appended since the last look. A file that shrank is read from its beginning."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._offset_bytes:
                    self._offset_bytes, self._torn = 0, b""
                file.seek(self._offset_bytes)
                fresh = file.read()
        except FileNotFoundError:
            return b""
        self._offset_bytes += len(fresh)
        return fresh

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
