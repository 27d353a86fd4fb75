"""Displays of a run's progress: on a terminal, or in a log."""

import asyncio
from typing import Protocol

from elastane.common.safe_text import format_entry
from elastane.run.nouns.spec import RunRecord


class AttemptView(Protocol):
    """The display of one attempt."""

    async def follow(self) -> None:
        """Show the attempt until cancelled."""

    def say(self, line: str) -> None:
        """Show a sentence about the run."""

    def close(self, *, update: bool) -> None:
        """End the display; with ``update``, show the last state first."""


class Display(Protocol):
    """Shows a run. Its failures do not affect the run."""

    def say(self, line: str) -> None:
        """Show a line between two attempts."""

    def view(self, record: RunRecord) -> AttemptView:
        """Open the view of an attempt that begins now."""


class LogDisplay:
    """Prints to standard output, if that is a log file; all other facts are in the run's own files."""

    def say(self, line: str) -> None:
        print(format_entry(line), flush=True)  # noqa: T201 - standard output is the log

    def view(self, record: RunRecord) -> AttemptView:
        return self

    async def follow(self) -> None:
        await asyncio.Event().wait()

    def close(self, *, update: bool) -> None:
        """Do nothing, because nothing is open."""
