"""The lines that a script prints between two steps, which the terminal of `elastane run` shows once."""

import builtins
import inspect
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_EARLY_LINES = 100
"""Lines from before `elastane.join`."""
LONGEST_LINE = 1000
"""In characters; the log has the whole line."""


class ScriptOutput:
    """Prints as Python does, and shows what the script's own files print in the main thread.

    Output of libraries stays in the worker's log, and so does that of processes and threads of the script.

    Args:
        folder: of the script.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}{os.sep}"
        self._process = os.getpid()
        self._print = builtins.print
        self._open_line = ""
        self._early: list[str] = []
        self._show: Callable[[str], None] = self._keep_early

    def print(
        self,
        *values: object,
        sep: str | None = None,
        end: str | None = None,
        file: Any = None,
        flush: bool = False,
    ) -> None:
        """Print as Python's own ``print``."""
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        is_usual = file in (None, sys.stdout) and isinstance(sep, str | None) and isinstance(end, str | None)
        if not is_usual or caller is None or not self._is_of_script(caller.f_code.co_filename):
            self._print(*values, sep=sep, end=end, file=file, flush=flush)
            return
        text = (" " if sep is None else sep).join(map(str, values)) + ("\n" if end is None else end)
        self._print(text, end="", file=file, flush=flush)
        *lines, self._open_line = (self._open_line + text).split("\n")
        for line in lines:
            # A progress bar overwrites its line.
            shown = line.rstrip("\r").rpartition("\r")[2]
            self._show(shown if len(shown) <= LONGEST_LINE else f"{shown[:LONGEST_LINE]}…")

    def _is_of_script(self, filename: str) -> bool:
        is_main = threading.current_thread() is threading.main_thread() and os.getpid() == self._process
        return is_main and filename.startswith(self._folder) and "site-packages" not in filename

    def _keep_early(self, line: str) -> None:
        if len(self._early) < MOST_EARLY_LINES:
            self._early.append(line)

    def connect(self, show: Callable[[str], None]) -> None:
        """Pass all lines on from now on, and those from before."""
        self._show = show
        for line in self._early:
            show(line)
        self._early.clear()


_output: ScriptOutput | None = None


def take_over_print(folder: Path) -> None:
    """Put `ScriptOutput.print` in the place of Python's ``print``, in a worker."""
    global _output  # noqa: PLW0603 - a process has one print
    _output = ScriptOutput(folder)
    builtins.print = _output.print


def show_prints(show: Callable[[str], None]) -> None:
    """Pass what the script prints to a function; do nothing outside of workers."""
    if _output is not None:
        _output.connect(show)
