"""What the processes of a job printed, read through the controller."""

import sys
import time
from typing import TYPE_CHECKING

from elastane.api.errors import BadInput
from elastane.api.wire import ENDED
from elastane.cli.verb import print_json
from elastane.client.context import connect

if TYPE_CHECKING:
    from elastane.client.cluster import Cluster

LOOK_S = 1.0


class Lines:
    """Whole lines of a text that comes in parts."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, part: bytes, *, at_end: bool = False) -> list[str]:
        """The lines that end in this part; at the end, the rest too."""
        *whole, self._rest = (self._rest + part).split(b"\n")
        if at_end and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode(errors="replace") for line in whole]


class Log:
    """One process's log, read on."""

    def __init__(self, job: str, process: str, *, as_json: bool) -> None:
        self.process = process
        self._job = job
        self._as_json = as_json
        self._offset = 0
        self._lines = Lines()

    def show(self, cluster: "Cluster", *, at_end: bool) -> None:
        """Print what is new; ``at_end``: nothing will follow, so a last line may have no end."""
        while True:
            part, following = cluster.logs(self._job, self.process, offset=self._offset)
            for line in self._lines.of(part, at_end=at_end and not part):
                if self._as_json:
                    print_json({"process": self.process, "line": line})
                else:
                    print(line, flush=True)
            if not part:
                return
            self._offset = following


def job_logs(name: str, process: str | None, *, follow: bool, as_json: bool) -> None:
    """The log of one process; of the newest worker unless one is named. Followed until the job has ended.

    Raises:
        BadInput: there is no such log yet.
    """
    log: Log | None = None
    with connect() as cluster:
        while True:
            # Asked before reading, so that what was written last is still read.
            ended = cluster.job(name).state in ENDED
            wanted = _chosen(name, process, cluster.processes(name), follow=follow and not ended)
            if wanted and (log is None or wanted != log.process):
                if log is not None:
                    log.show(cluster, at_end=True)
                    print(f"now {wanted}", file=sys.stderr)
                log = Log(name, wanted, as_json=as_json)
            if log is not None:
                log.show(cluster, at_end=ended or not follow)
            if ended or not follow:
                return
            time.sleep(LOOK_S)


def _chosen(name: str, process: str | None, known: tuple[str, ...], *, follow: bool) -> str:
    """Which log; empty: none yet, and there may come one."""
    if process is None:
        workers = [one for one in known if one.startswith("worker-")]
        found = workers[-1] if workers else known[0] if known else ""
    else:
        found = f"worker-{process}" if process.isdigit() else process
        found = found if found in known else ""
    if found or follow:
        return found
    what = "any of its processes" if process is None else process
    raise BadInput(
        f"job {name} has no log of {what}",
        do=f"choose one of {', '.join(known)}"
        if known
        else f"elastane explain {name} says what it waits for",
    )
