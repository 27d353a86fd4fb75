"""Live view of an unmodified script: its events, and the output of rank 0."""

import asyncio

from rich.console import Console
from rich.text import Text

from elastane.cli.runs.run_display import describe_run_event
from elastane.cli.terminal import split_log_line
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec
from elastane.run.observability.run_files import decode_event_line
from elastane.run.observability.tail import Tail
from elastane.run.scripts.agent.rank_processes import name_rank_log

LOOK_S = 0.1
STARTED = "generation.started"
NOT_SHOWN = frozenset({"coordinator.started"})


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
