"""Whoever looks on while a run lives: a terminal, or a log."""

import asyncio
from typing import Protocol

from elastane.api.safe_text import format_entry
from elastane.api.spec import RunRecord


class AttemptView(Protocol):
    """One attempt as somebody sees it."""

    async def follow(self) -> None:
        """Shows it until cancelled."""

    def say(self, words: str) -> None:
        """A sentence about what happens to the run now."""

    def close(self, *, look: bool) -> None:
        """Takes a last look, if wanted, and ends."""


class Display(Protocol):
    """Nothing it does changes what becomes of the run."""

    def say(self, line: str) -> None:
        """A line between two attempts."""

    def view(self, record: RunRecord) -> AttemptView:
        """Opens the view of an attempt that begins now."""


class LogDisplay:
    """Standard output, when that is a file that nobody watches: the run's own files say the rest."""

    def say(self, line: str) -> None:
        print(format_entry(line), flush=True)  # noqa: T201 - standard output is the log

    def view(self, record: RunRecord) -> AttemptView:  # noqa: ARG002 - all attempts look alike here
        return self

    async def follow(self) -> None:
        await asyncio.Event().wait()

    def close(self, *, look: bool) -> None:
        """Nothing is open."""
