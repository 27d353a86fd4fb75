"""What the processes of a job printed, read through the controller."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from elastane.api.errors import BadInput
from elastane.api.job_records import ENDED
from elastane.cli.runs.logs import print_log_line
from elastane.client.context import connect

if TYPE_CHECKING:
    from elastane.client.cluster import Cluster

LOOK_S = 1.0


class LineSplitter:
    """Whole lines of a text that comes in parts."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, part: bytes, *, at_end: bool = False) -> list[str]:
        """The lines that end in this part; at the end, the rest too."""
        *whole, self._rest = (self._rest + part).split(b"\n")
        if at_end and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode(errors="replace") for line in whole]


class JobLog:
    """One process's log, read on."""

    def __init__(self, job: str, process: str) -> None:
        self._job, self._process = job, process
        self._offset = 0
        self._lines = LineSplitter()

    def new_lines(self, cluster: "Cluster", *, at_end: bool) -> Iterator[str]:
        """What is new; ``at_end``: nothing will follow, so a last line may have no end."""
        while True:
            part, following = cluster.logs(self._job, self._process, offset=self._offset)
            yield from self._lines.of(part, at_end=at_end and not part)
            if not part:
                return
            self._offset = following


def show_job_logs(name: str, process: str | None, *, follow: bool, as_json: bool, raw: bool) -> None:
    """The log of one process, or of all; followed until the job has ended.

    Raises:
        BadInput: there is no such log yet.
    """
    logs: dict[str, JobLog] = {}
    with connect() as cluster:
        while True:
            # Asked before reading, so that what was written last is still read.
            more = follow and cluster.job(name).state not in ENDED
            for one in _select_logs(name, process, cluster.processes(name), may_come=more):
                log = logs.setdefault(one, JobLog(name, one))
                for line in log.new_lines(cluster, at_end=not more):
                    print_log_line(one, line, prefix=process is None, as_json=as_json, raw=raw)
            if not more:
                return
            time.sleep(LOOK_S)


def _select_logs(
    name: str, process: str | None, known: tuple[str, ...], *, may_come: bool
) -> tuple[str, ...]:
    """Which logs; none only if they may still come."""
    if process is None:
        found = known
    else:
        asked = f"worker-{process}" if process.isdigit() else process
        found = tuple(one for one in known if one == asked)
    if found or may_come:
        return found
    what = "any of its processes" if process is None else process
    raise BadInput(
        f"job {name} has no log of {what}",
        do=f"choose one of {', '.join(known)}"
        if known
        else f"elastane explain {name} says what it waits for",
    )
