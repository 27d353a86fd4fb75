"""Following a run while it lives: its files into a panel on a terminal, or into plain lines."""

import asyncio
import time

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from elastane.api.errors import ElastaneError
from elastane.api.records import OUTCOMES, EventLine
from elastane.api.rundir import RunDir
from elastane.api.spec import RunSpec
from elastane.cli.runs.log_schedule import LogSchedule
from elastane.cli.runs.panel import render_panel
from elastane.cli.runs.progress import MESSAGE, QUIET, Progress, add_event, add_line
from elastane.cli.words import event_text, restored_event, step_text
from elastane.observability.attempts import RESTORED, RESUMED
from elastane.observability.run_files import decode_event_line, decode_ledger_line, read_record
from elastane.observability.tail import Tail

LOOK_S = 0.1


class Watcher:
    """Reads what was written since the last look, and shows it."""

    def __init__(self, run_dir: RunDir, spec: RunSpec, console: Console) -> None:
        self.run_dir = run_dir
        self.spec = spec
        self.console = console
        self.note = "Ctrl-C stops at the next commit"
        self.progress = Progress()
        self._ledger, self._events = Tail(run_dir.ledger), Tail(run_dir.events)
        self._schedule = LogSchedule()
        self._shown_step = 0
        self._live: Live | None = None
        self._restored: list[EventLine] = []
        self._catch_up()

    def _catch_up(self) -> None:
        """Take in what earlier attempts of the run have written, but do not tell it again."""
        for line in self._ledger.new_lines():
            self.progress = add_line(self.progress, decode_ledger_line(line))
        self._shown_step = self.progress.step
        for event in map(decode_event_line, self._events.new_lines()):
            if event.kind == RESUMED:
                self.progress = add_event(self.progress, event)
        # Who trained then, and how fast, says nothing about now.
        newest = self.progress.line
        nobody = None if newest is None else msgspec.structs.replace(newest, workers={})
        self.progress = msgspec.structs.replace(self.progress, recent=(), line=nobody)

    async def follow(self) -> None:
        """Show the run until cancelled."""
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def close(self, *, look: bool) -> None:
        """Take a last look, if wanted, and give the terminal back."""
        if look:
            self.look(last=True)
        if self._live is not None:
            self._live.stop()
            self._live = None

    def look(self, *, last: bool = False) -> None:
        """Read on, and show what is new."""
        if self.progress.steps is None:
            self.learn_pinned()
        for line in self._ledger.new_lines():
            self.progress = add_line(self.progress, decode_ledger_line(line))
        if self._live is None:
            self.print_step(last=last)
        for line in self._events.new_lines():
            self.hear(decode_event_line(line))
        if self._live is not None:
            self._live.update(render_panel(self.spec, self.progress, self.note), refresh=True)

    def hear(self, event: EventLine) -> None:
        if event.kind == MESSAGE:
            # What the script prints scrolls by as it would without us, above the panel if there is one.
            self.console.print(Text(event.why))
            return
        if event.kind == RESTORED:
            self._restored.append(event)
            return
        if self._restored and event.kind == "generation.started":
            # Its first step has committed, so all have read what they were to read.
            together = restored_event(self._restored)
            self._restored.clear()
            self.hear_one(together)
        self.hear_one(event)

    def hear_one(self, event: EventLine) -> None:
        """Show an event as it is."""
        self.progress = add_event(self.progress, event)
        if self._live is None and event.kind not in QUIET:
            # A log whose last word is a step from before the end would look cut off.
            self.print_step(last=event.kind in OUTCOMES)
            self.console.print(event_text(event))

    def print_step(self, *, last: bool) -> None:
        """Print a line for a log when one is due, and never the same step twice.

        Args:
            last: print it even if none is due.
        """
        if self.progress.step > self._shown_step and (last or time.monotonic() >= self._schedule.due_s):
            self.console.print(Text(step_text(self.progress)))
            self._shown_step = self.progress.step
            self._schedule = self._schedule.after_line(time.monotonic())

    def learn_pinned(self) -> None:
        try:
            pinned = read_record(self.run_dir).pinned
        except ElastaneError:
            return  # being replaced at this moment; the next look finds it whole
        if pinned is not None:
            self.progress = msgspec.structs.replace(
                self.progress, steps=pinned.steps, virtual_ranks=pinned.virtual_ranks
            )

    def say(self, words: str) -> None:
        """A sentence of our own: the panel's foot, or a line."""
        self.note = words
        if self._live is None:
            self.console.print(Text(words))
