"""The process that feeds the trackers of a run: it is started, restarted, and given time to finish.

The first machine feeds them from the start. After it has left or died, another one is in charge. One process
at a time feeds them, because it holds a lock in the shared run directory; the next one passes on what the
trackers lack.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import msgspec

from elastane.common.errors import ElastaneError
from elastane.common.safe_text import fold_text
from elastane.run.agent.restarts import Deaths
from elastane.run.nouns.notices import hold_notices
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.trackers import Tracker
from elastane.run.observability.line_files import append_line
from elastane.run.trackers.tracker_requests import TrackerRequests

POLL_S = 0.5
RESTART_S = 0.5
WITHIN_S = 60.0
QUIET_S = 2.0
"""The time for the last records before the user learns what the end of the run waits for."""
EXIT_S = 2.0
LATE = 1
"""The exit code of a process that could not pass on everything; it has said so itself."""


class TrackerKeeper:
    """Keeps the process of the trackers running, as long as the run has any; its failures harm no run.

    Args:
        chosen: the trackers of its spec. Its script may ask for more.
        say: takes lines for the user, from another thread.
    """

    def __init__(self, run_dir: RunDir, chosen: tuple[Tracker, ...], say: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._requests = TrackerRequests(run_dir, chosen)
        self._say = say
        self._ending, self._closed = threading.Event(), threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._grace_s = 0.0
        self._late = False
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._keep, name="elastane-trackers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._ending.set()
        if (process := self._process) is not None:
            process.kill()
        self._thread.join(EXIT_S)

    def finish(self, grace_s: float) -> None:
        """Wait until the trackers have everything, at most this many seconds; Ctrl-C ends the wait."""
        self._grace_s = grace_s
        self._ending.set()
        self._end_input()
        try:
            self._thread.join(QUIET_S)
            if self._thread.is_alive():
                self._say(f"waiting up to {grace_s:.0f} s for the trackers of the run; Ctrl-C skips that")
                self._thread.join(grace_s + EXIT_S)
        except KeyboardInterrupt:
            self._say("not waiting for the trackers")
        if self._thread.is_alive() or self._late:
            self._record_loss()

    def _record_loss(self) -> None:
        """Record that trackers lack metrics, once no other process of the run writes events."""
        what = "the trackers do not have all metrics of the run"
        do = f"python -m elastane.run.trackers {self._run_dir.root} < /dev/null tries again"
        if not self._late:
            self._say(f"{what}; {do}")
        event = EventLine(time=time.time(), kind="warning", who="trackers", why=f"{what}; {do}")
        with suppress(OSError):
            append_line(self._run_dir.events, msgspec.json.encode(event))

    def _keep(self) -> None:
        if not self._wait_for_request():
            return
        deaths = Deaths(WITHIN_S)
        while not deaths.too_many:
            try:
                code = self._serve()
            except OSError as error:
                self._say(f"the trackers of the run cannot be fed: {error}")
                return
            if self._closed.is_set() or (self._ending.is_set() and code in (0, LATE)):
                self._late = code == LATE
                return
            deaths = deaths.add(time.monotonic(), code)
            if not self._ending.is_set():
                self._ending.wait(RESTART_S)
        log = self._run_dir.log("trackers")
        self._say(
            f"the trackers of the run get no more metrics: their process died {len(deaths.times)} times "
            f"within {WITHIN_S:.0f} s, see {log}"
        )

    def _wait_for_request(self) -> bool:
        """Wait until the run has a tracker; return False if it ended without."""
        while True:
            ending = self._ending.is_set()
            # A damaged path harms the trackers only.
            with suppress(ElastaneError, OSError):
                if self._requests.read():
                    return True
            if ending:
                return False
            self._ending.wait(POLL_S)

    def _serve(self) -> int:
        """Run the process once; return its exit code, negative for a signal."""
        command = [sys.executable, "-P", "-m", "elastane.run.trackers", str(self._run_dir.root)]
        if self._grace_s:
            command += ["--grace", str(self._grace_s)]
        with self._run_dir.log("trackers").open("ab") as log, hold_notices():
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        with process:
            self._process = process
            if self._ending.is_set():
                self._end_input()
            if self._closed.is_set():
                process.kill()
            assert process.stdout is not None, "it is a pipe"
            for line in process.stdout:
                self._repeat(fold_text(line.rstrip("\n")))
            code = process.wait()
        self._process = None
        return code

    def _repeat(self, line: str) -> None:
        """Repeat a line of the process for the user, once: a process that was restarted says it again."""
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def _end_input(self) -> None:
        """Close the process's standard input, which tells it that the run is over."""
        process = self._process
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()


class StandbyTrackers:
    """Keeps that process running on a machine that has joined, from the time when the machine is in charge.

    Args:
        chosen: the trackers of its spec.
        say: takes lines for the user, from another thread.
    """

    def __init__(self, run_dir: RunDir, chosen: tuple[Tracker, ...], say: Callable[[str], None]) -> None:
        self._run_dir, self._chosen, self._say = run_dir, chosen, say
        self._keeper: TrackerKeeper | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._keeper is not None:
            self._keeper.__exit__(*error)

    async def follow(self, is_in_charge: Callable[[], bool]) -> None:
        """Wait until this machine is in charge, then keep the process until the context ends."""
        while not is_in_charge():  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(POLL_S)
        self.start()

    def start(self) -> None:
        """Start the process, unless it runs already."""
        if self._keeper is None:
            self._keeper = TrackerKeeper(self._run_dir, self._chosen, self._say).__enter__()

    def finish(self, grace_s: float) -> None:
        """Wait until the trackers have everything, at most this many seconds, if this machine feeds them."""
        if self._keeper is not None:
            self._keeper.finish(grace_s)
