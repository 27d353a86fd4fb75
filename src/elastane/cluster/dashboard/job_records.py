"""One job with the records of its run, kept up to date while pages show it."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from elastane.cluster.dashboard.run_pictures import RunPictures
from elastane.cluster.dashboard.run_records import MOST_LINES, RunRecords
from elastane.cluster.nouns.history import DecisionRecord, Event
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.job_workers import JobWorker
from elastane.cluster.nouns.rest import Job, ReadRecord
from elastane.common.connections.controller_connection import NotFound, RequestRefused
from elastane.common.errors import ElastaneError
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord
from elastane.run.observability.run_files import LARGEST_RECORD_BYTES, Recorded

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster

EACH_S = 0.6
"""Interval of looks at the run of a job, which makes no events of the cluster."""
EXPLAIN_S = 5.0
IDLE_S = 60.0
LOG_BYTES = 24_000
MOST_LOGS = 16
KEEP_WORKERS_S = 10.0
"""How long the last answer of a run about its workers is shown."""

_decode_record = Decoder[RunRecord](RunRecord, at_most_bytes=LARGEST_RECORD_BYTES)


class JobSight(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a job.

    Args:
        events: of the job in the cluster, oldest first.
        decisions: newest first.
        processes: those that have a log.
        workers: what each does now; none: the run does not answer.
        recorded: the records of its run; None: it has not begun, or they cannot be read.
        left_out: how many of the oldest steps are not in the records here.
    """

    job: Job
    events: tuple[Event, ...] = ()
    decisions: tuple[DecisionRecord, ...] = ()
    processes: tuple[str, ...] = ()
    workers: tuple[JobWorker, ...] = ()
    recorded: Recorded | None = None
    left_out: int = 0


class WatchedJob:
    """A job that pages show. Its pages share the facts; only one of them asks at a time.

    Args:
        ask: asks the controller.

    Attributes:
        version: grows with every event of the job.
    """

    def __init__(self, name: str, ask: "Callable[[Callable[[Cluster], Any]], Any]") -> None:
        self.name = name
        self.version = 0
        self._is_away = False
        self._workers: tuple[JobWorker, ...] = ()
        self._workers_s = -1e9
        self._worker_asker: threading.Thread | None = None
        self._ask = ask
        self._lock = threading.Lock()
        self._looked_s = self._explained_s = -1e9
        self._used_s = time.monotonic()
        self._sight: JobSight | None = None
        self._record: RunRecord | None = None
        self._records = RunRecords()
        self.pictures = RunPictures()
        self._logs: dict[str, tuple[float, str]] = {}

    def is_idle(self, now_s: float) -> bool:
        return now_s - self._used_s > IDLE_S

    def expire(self) -> None:
        """Say that the job has changed, so that the next look asks again at once."""
        self.version += 1
        self._looked_s = -1e9

    def look(self) -> JobSight:
        """Return the facts, asked for less than a second ago."""
        with self._lock:
            self._used_s = now_s = time.monotonic()
            if self._sight is None or now_s - self._looked_s > EACH_S:
                # Before the request: an event that comes meanwhile makes the next look ask again.
                self._looked_s = now_s
                self._sight = self._look_again(self._sight, now_s)
            return self._sight

    def _look_again(self, before: JobSight | None, now_s: float) -> JobSight:
        try:
            found = cast("JobSight", self._ask(lambda cluster: self._read(cluster, before, now_s)))
        except RequestRefused:
            raise
        except ElastaneError:
            # While the controller is away, pages show what it said last, and a notice of the feed says so.
            if before is None:
                raise
            self._is_away = True
            return before
        self._is_away = False
        return found

    def read_log(self, process: str) -> str:
        """Return the end of the log of a process; empty: it has none."""
        with self._lock:
            read_s, text = self._logs.get(process, (-1e9, ""))
            if self._is_away or time.monotonic() - read_s < EACH_S:
                return text
            if len(self._logs) > MOST_LOGS:
                self._logs.clear()
        data: bytes = b""
        with suppress(NotFound):
            data, _ = self._ask(lambda cluster: cluster.jobs.logs(self.name, process, offset=-LOG_BYTES))
        text = data.decode(errors="replace")
        if len(data) >= LOG_BYTES:
            text = text.partition("\n")[2]
        self._logs[process] = (time.monotonic(), text)
        return text

    def _read(self, cluster: "Cluster", before: JobSight | None, now_s: float) -> JobSight:
        job = cluster.jobs.get(self.name)
        known = () if before is None else before.events
        events = (*known, *cluster.jobs.events(self.name, after=known[-1].id if known else 0))
        decisions = () if before is None else before.decisions
        processes = () if before is None else before.processes
        if now_s - self._explained_s > EXPLAIN_S or len(events) > len(known):
            self._explained_s = now_s
            decisions = cluster.jobs.explain(self.name).decisions
            processes = cluster.jobs.processes(self.name)
        over = before is not None and before.job.state in ENDED and before.job.version == job.version
        recorded = before.recorded if over and before is not None else self._read_run(cluster, job)
        return JobSight(
            job=job,
            events=events[-MOST_LINES:],
            decisions=decisions,
            processes=processes,
            workers=self._find_workers(job, now_s),
            recorded=recorded,
            left_out=self._records.ledger.dropped,
        )

    def _find_workers(self, job: Job, now_s: float) -> tuple[JobWorker, ...]:
        """Return the last answer of the run about its workers, and let a thread ask for the next one.

        On a busy machine a run answers late. Nothing else on the page waits for it, and its workers do not
        come and go.
        """
        if job.state != "running":
            return ()
        if self._worker_asker is None or not self._worker_asker.is_alive():
            self._worker_asker = threading.Thread(target=self._ask_workers, name="feed-workers", daemon=True)
            self._worker_asker.start()
        return self._workers if now_s - self._workers_s < KEEP_WORKERS_S else ()

    def _ask_workers(self) -> None:
        with suppress(ElastaneError):
            if found := self._ask(lambda cluster: cluster.jobs.workers(self.name)):
                self._workers_s, self._workers = time.monotonic(), found

    def _read_run(self, cluster: "Cluster", job: Job) -> Recorded | None:
        if not job.run_dir:
            return None

        def read_part(record: ReadRecord, offset: int) -> tuple[bytes, int]:
            try:
                return cluster.jobs.record(self.name, record, offset=offset)
            except NotFound:
                return b"", offset

        self._records.read(read_part)
        if self._record is None or self._record.pinned is None:
            try:
                self._record = _decode_record(read_part("run.json", 0)[0])
            except Malformed:
                return None
        return Recorded(
            run_dir=RunDir(Path(job.run_dir)),
            record=self._record,
            ledger=tuple(self._records.ledger.lines),
            events=tuple(self._records.events.lines),
            live=job.state == "running",
        )
