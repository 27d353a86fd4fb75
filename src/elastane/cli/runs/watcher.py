"""Live views from files: of a run, a panel or plain lines; of an unmodified script, what rank 0 prints."""

import asyncio
import time

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from elastane.cli.runs.panel import render_panel
from elastane.cli.runs.progress import MESSAGE, QUIET, Progress, add_event, add_line
from elastane.cli.runs.run_display import combine_restored_events, describe_run_event, describe_run_progress
from elastane.cli.terminal import split_log_line
from elastane.common.errors import ElastaneError
from elastane.run.nouns.records import OUTCOMES, PRINTED, EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec
from elastane.run.observability.attempts import RESTORED, RESUMED
from elastane.run.observability.run_files import decode_event_line, decode_ledger_line, read_record
from elastane.run.observability.tail import Tail
from elastane.run.scripts.agent.rank_processes import name_rank_log

LOOK_S = 0.1
INTERVALS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds between two lines of a log; the last one repeats.

People read the log of a run of ten days too, services that collect logs charge for each line, and some CI
services end a job after ten silent minutes.
"""
STARTED = "generation.started"
NOT_SHOWN = frozenset({"coordinator.started"})


class Watcher:
    """View of a run that reads its new ledger lines and events, and shows them."""

    def __init__(self, run_dir: RunDir, spec: RunSpec, console: Console) -> None:
        self.run_dir = run_dir
        self.spec = spec
        self.console = console
        self.note = "Ctrl-C stops at the next commit"
        self.progress = Progress()
        self._ledger, self._events = Tail(run_dir.files, run_dir.ledger), Tail(run_dir.files, run_dir.events)
        self._schedule = LogSchedule()
        self._shown_step = 0
        self._live: Live | None = None
        self._restored: list[EventLine] = []
        self._catch_up()

    def _catch_up(self) -> None:
        """Read the output of earlier attempts of the run without printing it again."""
        for line in self._ledger.read_new_lines():
            self.progress = add_line(self.progress, decode_ledger_line(line))
        self._shown_step = self.progress.step
        for event in map(decode_event_line, self._events.read_new_lines()):
            if event.kind == RESUMED:
                self.progress = add_event(self.progress, event)
        # The workers and speed of earlier attempts do not describe this one.
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

    def close(self, *, update: bool) -> None:
        """Read and show the last output, if wanted, and release the terminal."""
        if update:
            self.look(last=True)
        if self._live is not None:
            self._live.stop()
            self._live = None

    def look(self, *, last: bool = False) -> None:
        """Read and show the new output of the run."""
        if self.progress.steps is None:
            self.read_pinned()
        for line in self._ledger.read_new_lines():
            self.progress = add_line(self.progress, decode_ledger_line(line))
        if self._live is None:
            self.print_step(last=last)
        for line in self._events.read_new_lines():
            self.take_event(decode_event_line(line))
        if self._live is not None:
            self._live.update(render_panel(self.spec, self.progress, self.note), refresh=True)

    def take_event(self, event: EventLine) -> None:
        """Show an event; the restores of several workers become one."""
        if event.kind in (MESSAGE, PRINTED):
            # Lines of the script scroll by as without elastane, above the panel if there is one.
            self.console.print(Text(event.why))
            return
        if event.kind == RESTORED:
            self._restored.append(event)
            return
        if self._restored and event.kind == "generation.started":
            # The first step of the generation has committed, so all workers have restored.
            together = combine_restored_events(self._restored)
            self._restored.clear()
            self.show_event(together)
        self.show_event(event)

    def show_event(self, event: EventLine) -> None:
        self.progress = add_event(self.progress, event)
        if self._live is None and event.kind not in QUIET:
            # Print the last step before the end, so that the log does not look cut off.
            self.print_step(last=event.kind in OUTCOMES)
            self.console.print(describe_run_event(event))

    def print_step(self, *, last: bool) -> None:
        """Print a line for a log when one is due, or the last; never the same step twice."""
        if self.progress.step > self._shown_step and (last or time.monotonic() >= self._schedule.due_s):
            self.console.print(Text(describe_run_progress(self.progress)))
            self._shown_step = self.progress.step
            self._schedule = self._schedule.after_line(time.monotonic())

    def read_pinned(self) -> None:
        try:
            pinned = read_record(self.run_dir).pinned
        except ElastaneError:
            return  # the file is being replaced; the next poll reads it
        if pinned is not None:
            self.progress = msgspec.structs.replace(
                self.progress, steps=pinned.steps, virtual_ranks=pinned.virtual_ranks
            )

    def say(self, words: str) -> None:
        """Show a message of elastane: at the foot of the panel, or as a line."""
        self.note = words
        if self._live is None:
            self.console.print(Text(words))


class LogSchedule(msgspec.Struct, frozen=True):
    """The number of lines so far, and the time of the next one.

    Args:
        lines: printed so far.
        due_s: time of the next line, on a monotonic clock; the first one is due at once.
    """

    lines: int = 0
    due_s: float = 0.0

    def after_line(self, now_s: float) -> "LogSchedule":
        """Return the schedule after a line was printed now, on the monotonic clock."""
        interval_s = INTERVALS_S[min(self.lines, len(INTERVALS_S) - 1)]
        return LogSchedule(self.lines + 1, now_s + interval_s)


class ScriptWatcher:
    """View of a run under a contract; the output of an earlier attempt is not shown again."""

    def __init__(self, run_dir: RunDir, spec: RunSpec, console: Console) -> None:
        self._run_dir = run_dir
        self._processes = 1 if spec.contract is None else spec.contract.processes
        self._console = console
        self._events = Tail(run_dir.files, run_dir.events)
        self._events.read_new_lines()
        self._logs: dict[int, Tail] = {}
        self._shown_worker: int | None = None
        for log in run_dir.list_logs():
            kind, _, worker = log.partition("-")
            if kind == "worker" and (worker := worker.split("-")[0]).isdigit():
                self._follow_worker(int(worker)).read_new_lines(at_end=True)

    async def follow(self) -> None:
        """Show the run until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def close(self, *, update: bool) -> None:
        """Show the last output, if wanted."""
        if update:
            self.look(last=True)

    def say(self, line: str) -> None:
        """Show a sentence of Elastane."""
        self._console.print(Text(line))

    def look(self, *, last: bool = False) -> None:
        """Show the new output and the new events of the run."""
        events = [decode_event_line(line) for line in self._events.read_new_lines()]
        starts = [event for event in events if event.kind == STARTED]
        # A change was announced after this output.
        self._show_output(last=last and not starts)
        for event in events:
            self._show_event(event)
        if starts:
            self._show_output(last=last)

    def _show_event(self, event: EventLine) -> None:
        if event.kind == STARTED:
            self._shown_worker = event.workers[0]
            for worker in event.workers:
                self._follow_worker(worker)
        if event.kind not in NOT_SHOWN:
            self._console.print(describe_run_event(event, timed=True))

    def _follow_worker(self, worker: int) -> Tail:
        log = self._run_dir.log(name_rank_log(worker, 0, self._processes))
        return self._logs.setdefault(worker, Tail(self._run_dir.files, log))

    def _show_output(self, *, last: bool) -> None:
        """Show what rank 0 has printed; the output of the other processes stays in their logs."""
        for worker, tail in self._logs.items():
            lines = tail.read_new_lines(at_end=last)
            if worker == self._shown_worker:
                for line in lines:
                    for part in split_log_line(line.decode(errors="replace")):
                        self._console.print(Text(part))
