"""Logs of the processes of a job, read through the controller."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from elastane.cli.runs.logs import print_log_line
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.job_records import ENDED
from elastane.common.errors import BadInput

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster

LOOK_S = 1.0


class LineSplitter:
    """Splitter of a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def split(self, part: bytes, *, at_end: bool = False) -> list[str]:
        """Return the lines that end in this part; with ``at_end`` the unfinished last line too."""
        *whole, self._rest = (self._rest + part).split(b"\n")
        if at_end and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode(errors="replace") for line in whole]


class JobLog:
    """Reader of the log of one process that continues where it stopped."""

    def __init__(self, job: str, process: str) -> None:
        self._job, self._process = job, process
        self._offset = 0
        self._lines = LineSplitter()

    def new_lines(self, cluster: "Cluster", *, at_end: bool) -> Iterator[str]:
        """Yield the new lines; ``at_end``: nothing will follow, so an unfinished last line counts too."""
        while True:
            part, following = cluster.jobs.logs(self._job, self._process, offset=self._offset)
            yield from self._lines.split(part, at_end=at_end and not part)
            if not part:
                return
            self._offset = following


def show_job_logs(name: str, process: str | None, *, follow: bool, as_json: bool, raw: bool) -> None:
    """Print the log of one process, or of all; with ``follow`` until the job has ended.

    Raises:
        BadInput: there is no such log yet.
    """
    logs: dict[str, JobLog] = {}
    with connect() as cluster:
        while True:
            # Check before reading, so that the last lines are still read.
            more = follow and cluster.jobs.get(name).state not in ENDED
            for one in _select_logs(name, process, cluster.jobs.processes(name), may_come=more):
                log = logs.setdefault(one, JobLog(name, one))
                for line in log.new_lines(cluster, at_end=not more):
                    print_log_line(one, line, prefix=process is None, as_json=as_json, raw=raw)
            if not more:
                return
            time.sleep(LOOK_S)


def _select_logs(
    name: str, process: str | None, known: tuple[str, ...], *, may_come: bool
) -> tuple[str, ...]:
    """Return the names of the logs to print; empty only if they may still come."""
    if process is None:
        found = known
    else:
        asked = f"worker-{process}" if process.isdigit() else process
        found = tuple(one for one in known if one == asked)
    if found or may_come:
        return found
    what = "any of its processes" if process is None else process
    raise BadInput(
        f"job {name} has no log of {what} yet",
        do=f"choose one of {', '.join(known)}"
        if known
        else f"elastane explain {name} shows what the job waits for",
    )
