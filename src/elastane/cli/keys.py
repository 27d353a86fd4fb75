"""Reader of single keys from a terminal."""

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Self


class Keys:
    """Context in which the terminal delivers keys at once, without echo; no keys without a terminal."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._fd is not None:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def read_key(self, timeout_s: float) -> str:
        """Return the key that is pressed within this many seconds; empty if there is none."""
        if self._fd is None:
            time.sleep(timeout_s)
            return ""
        ready, _, _ = select.select((self._fd,), (), (), timeout_s)
        return os.read(self._fd, 1).decode(errors="replace") if ready else ""
