"""Follows the events of the cluster and of its runs, and exports the traces that they make.

It is a thread of its own that only reads, so a collector that is slow or away delays nothing. It keeps no
place: after a restart it reads the last minutes again, and the traces have the same ids.
"""

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from elastane.cluster.controller.store import history, meter_rows
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.traces.change_traces import (
    JobTraces,
    Trace,
    add_cluster_event,
    add_run_event,
)
from elastane.cluster.nouns.history import Event
from elastane.common.errors import ElastaneError
from elastane.common.extras import MissingExtra, require_for_import
from elastane.common.permissions import use_owner_rights
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_event_line
from elastane.run.observability.tail import Tail

if TYPE_CHECKING:
    from elastane.cluster.controller.traces.export import TraceExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
LOOK_S = 2.0
AGAIN_S = 600.0
"""How far back a new follower begins. A resize that takes longer than this over a restart has no trace."""
EVENTS_AT_ONCE = 500
TAIL_BYTES = 1 << 20
MOST_WAITING = 1000
"""Traces that wait for the collector; older ones are dropped."""
SENT_AT_ONCE = 100
MOST_OF_A_JOB = 20
"""Traces of one job from one look, so that no job takes the places of others."""

logger = logging.getLogger(__name__)


def wants_traces(environment: Mapping[str, str]) -> bool:
    """Return whether the variables of OpenTelemetry ask for traces."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp" or not any(map(environment.get, ENDPOINTS)):
        return False
    for name in PROTOCOLS:
        if (protocol := environment.get(name, "http/protobuf")) != "http/protobuf":
            logger.warning("%s is %s; traces are sent as http/protobuf", name, protocol)
    return True


def open_exporter() -> "TraceExporter":
    """Return an exporter to the collector that the environment names.

    Raises:
        MissingExtra: a library is not installed.
    """
    with require_for_import("traces", "OTEL_EXPORTER_OTLP_ENDPOINT asks for traces"):
        from elastane.cluster.controller.traces.export import TraceExporter

    return TraceExporter()


class TraceFollower:
    """Follows all jobs of a cluster.

    Args:
        open_exporter: makes the exporter, in the thread of the follower.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        store: Store,
        open_exporter: Callable[[], "TraceExporter"] = open_exporter,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._open_exporter = open_exporter
        self._exporter: TraceExporter | None = None
        self._since_s = clock() - AGAIN_S
        self._event: int | None = None
        self._jobs: dict[str, JobTraces] = {}
        self._tails: dict[str, Tail] = {}
        self._waiting: deque[Trace] = deque(maxlen=MOST_WAITING)
        self._reached = True
        self._closing = threading.Event()

    def run(self) -> None:
        """Follow until it is closed."""
        try:
            self._exporter = self._open_exporter()
        except MissingExtra as error:
            logger.warning("%s", error)
            return
        while not self._closing.wait(LOOK_S):
            # The monitor of the store reports why it cannot be read.
            with suppress(ElastaneError):
                self.look()
            self.send()
        self._exporter.close()

    def close(self) -> None:
        self._closing.set()
        if (exporter := self._exporter) is not None:
            exporter.close()

    def look(self) -> None:
        """Read the new events, and keep the traces that they end."""
        news: dict[str, list[Event | EventLine]] = defaultdict(list)
        with self._store.begin_read() as tx:
            newest = history.find_newest_event(tx)
            after = max(0, newest - MOST_WAITING) if self._event is None else self._event
            while events := history.list_events_after(tx, after, EVENTS_AT_ONCE, public=False):
                for event in events:
                    news[event.job].append(event)
                after = events[-1].id
            run_dirs = meter_rows.map_run_dirs(tx)
        self._event = after
        for job, run_dir in run_dirs.items():
            if job not in self._tails:
                found = RunDir(Path(run_dir))
                self._tails[job] = Tail(found.files, found.events, TAIL_BYTES)
        for job in self._tails:
            news[job] += self._read_lines(job)
        for job in self._tails.keys() - run_dirs.keys():
            del self._tails[job]
        for job, found_here in news.items():
            if job:
                self._add_news(job, found_here)

    def send(self) -> None:
        """Send the traces that wait, until the collector refuses some."""
        assert self._exporter is not None, "it runs"
        while self._waiting and not self._closing.is_set():
            some = tuple(islice(self._waiting, SENT_AT_ONCE))
            reached = self._exporter.send(some)
            if reached != self._reached:
                logger.warning("traces are %s", "sent again" if reached else "kept: the collector is away")
            self._reached = reached
            if not reached:
                return
            for _ in some:
                self._waiting.popleft()

    def _add_news(self, job: str, news: Iterable[Event | EventLine]) -> None:
        """Add events of both kinds in the order of their times; at the same time, a decision comes first."""
        traces, made = self._jobs.pop(job, JobTraces(job)), list[Trace]()
        for event in sorted(news, key=lambda event: (_read_time(event), isinstance(event, EventLine))):
            if _read_time(event) >= self._since_s:
                if isinstance(event, Event):
                    traces, ended = add_cluster_event(traces, event)
                else:
                    traces, ended = add_run_event(traces, event)
                made += ended
        self._waiting += made[-MOST_OF_A_JOB:]
        if traces != JobTraces(job):
            self._jobs[job] = traces

    def _read_lines(self, job: str) -> list[EventLine]:
        tail = self._tails[job]
        try:
            with use_owner_rights(tail.path.parent):
                lines = tail.read_new_lines()
        except (OSError, ElastaneError):
            # The job may have changed its directory; the traces of other jobs go on.
            return []
        found = []
        for text in lines:
            with suppress(Malformed):
                found.append(decode_event_line(text))
        return found


def _read_time(event: Event | EventLine) -> float:
    return event.time_s if isinstance(event, Event) else event.time
