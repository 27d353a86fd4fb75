"""What a token may see of its cluster, in memory and up to date: one watch for all pages of a token."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import TypeVar

import msgspec

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.dashboard.job_records import WatchedJob
from elastane.cluster.dashboard.job_table import JobTable, summarize
from elastane.cluster.dashboard.rendering import DrawnPages
from elastane.cluster.dashboard.use_history import DayUses, UseHistory
from elastane.cluster.nouns.config import PriorityClass, Reservation, Team
from elastane.cluster.nouns.controller import Health
from elastane.cluster.nouns.rest import JobSummary, Me
from elastane.cluster.nouns.usage import ClusterFigures, Occupancy, UsageRow
from elastane.common.connections.controller_connection import NotFound, RequestRefused
from elastane.common.connections.controller_context import Context
from elastane.common.durations import DAY_S
from elastane.common.errors import ElastaneError

T = TypeVar("T")

PATIENCE_S = 3.0
"""A controller that does not answer for this long is away, and the pages say so."""
ASK_S = 10.0
LOOK_S = 0.1
RUNNING_S = 3.0
"""Interval of looks at the steps of running jobs, of which there are no events."""
SOON_S = 0.3
"""Least interval of looks at pools and reasons while the cluster changes."""
SLOW_S = 15.0
"""Interval of looks at documents, health and figures."""
IDLE_S = 120.0
"""A feed without readers ends after this time."""
AT_ONCE = 50
PAGE = 100
"""Jobs of one request: more would delay other requests to the controller, and take as long for each job."""
MOST_WAITING = 3000
"""The newest waiting jobs whose next decisions are read again; those of older ones come with their events."""
SHOWN_QUEUE = 12
MOST_CONNECTIONS = 8

logger = logging.getLogger(__name__)


class ClusterSight(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a cluster besides its jobs; None: not known yet.

    Args:
        trouble: why the facts may be old; empty: they are not.
        refused: why the controller does not say a part of them; empty: it says all.
        loaded: all jobs have been read once.
        day, month: figures of 24 hours, and of 30 days.
        uses: devices of each team and pool, as a mean of the last minute.
    """

    me: Me
    trouble: str = ""
    refused: str = ""
    loaded: bool = False
    pools: tuple[Occupancy, ...] = ()
    health: Health | None = None
    teams: tuple[Team, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    priorities: tuple[str, ...] = ()
    day: ClusterFigures | None = None
    month: ClusterFigures | None = None
    uses: tuple[UsageRow, ...] = ()


class ClusterFeed:
    """The jobs and pools that one token may see.

    Attributes:
        sight: the newest facts; replaced as a whole.
        table: the jobs.
        version: grows with every change.
        refusal: why the token is not valid any more; empty: it is.
    """

    def __init__(self, context: Context, me: Me) -> None:
        self._context = context
        self.sight = ClusterSight(me=me)
        self.table = JobTable()
        self.history = UseHistory()
        self.days = DayUses()
        self.version = 0
        self.drawn = DrawnPages()
        self.refusal = ""
        self._changed: set[str] = set()
        self._cluster_changed = False
        self._slow_looks: Iterator[float] = iter(())
        self._lock = threading.Lock()
        self._idle: dict[float, list[Cluster]] = {ASK_S: [], PATIENCE_S: []}
        self._jobs: dict[str, WatchedJob] = {}
        self._seen: int | None = None
        self.read_s = time.monotonic()
        self._closed = threading.Event()
        for work in (self._watch, self._keep):
            threading.Thread(target=work, name=f"feed-{work.__name__}", daemon=True).start()

    # -- for pages -----------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Say that a page is being read."""
        self.read_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        return self._closed.is_set() or time.monotonic() - self.read_s > IDLE_S

    def close(self) -> None:
        self._closed.set()

    def ask(self, request: Callable[[Cluster], T], patience_s: float = ASK_S) -> T:
        """Ask the controller with the token of this feed, from any thread.

        Args:
            patience_s: for the request with all its retries: `ASK_S` or `PATIENCE_S`.

        Raises:
            RequestRefused: the controller refused.
            ElastaneError: it did not answer.
        """
        with self._borrow(patience_s) as cluster:
            return request(cluster)

    def watch_job(self, name: str) -> WatchedJob:
        """Return the records of a job, which all its open pages share."""
        with self._lock:
            for other in [name for name, job in self._jobs.items() if job.is_idle(time.monotonic())]:
                del self._jobs[other]
            return self._jobs.setdefault(name, WatchedJob(name, partial(self.ask, patience_s=PATIENCE_S)))

    def _find_watched(self, names: Iterable[str]) -> list[WatchedJob]:
        with self._lock:
            return [self._jobs[name] for name in names if name in self._jobs]

    def find_version(self, job: str = "") -> int:
        """Return the version of a job that pages show, or else of the cluster."""
        with self._lock:
            watched = self._jobs.get(job)
        return self.version if watched is None else watched.version

    def note_change(self, job: str = "") -> None:
        """Say that a job, or the cluster, has changed."""
        with self._lock:
            self._changed.update({job} if job else ())
            self._cluster_changed = True

    @contextmanager
    def _borrow(self, patience_s: float) -> Iterator[Cluster]:
        with self._lock:
            idle = self._idle[patience_s]
            found = idle.pop() if idle else None
        cluster = Cluster.from_context(self._context, timeout_s=patience_s) if found is None else found
        try:
            yield cluster
        finally:
            with self._lock:
                keep = len(idle) < MOST_CONNECTIONS and not self._closed.is_set()
                if keep:
                    idle.append(cluster)
            if not keep:
                cluster.close()

    # -- in threads of its own -----------------------------------------------------------------------------

    def _watch(self) -> None:
        with Cluster.from_context(self._context, timeout_s=PATIENCE_S) as cluster:
            while not self.is_over:
                try:
                    for event in cluster.watch(after=self._seen, is_over=lambda: self.is_over):
                        self._seen = event.id
                        self.note_change(event.job)
                except ElastaneError as error:
                    self._explain(error)
                    self._closed.wait(LOOK_S)

    def _keep(self) -> None:
        due = dict.fromkeys(("pools", "running", "slow", "again"), 0.0)
        with Cluster.from_context(self._context, timeout_s=PATIENCE_S) as cluster:
            while not self.is_over:
                try:
                    pause_s = self._go_on(cluster, due)
                except ElastaneError as error:
                    self._explain(error)
                    pause_s = 1.0
                self._closed.wait(pause_s)
        self.close()
        with self._lock:
            idle = [cluster for kept in self._idle.values() for cluster in kept]
            for kept in self._idle.values():
                kept.clear()
        for cluster in idle:
            cluster.close()

    def _go_on(self, cluster: Cluster, due: dict[str, float]) -> float:
        """Read what has changed or is due; return how long to wait then.

        Of what changes slowly one part is read at a time, so that no change waits for all of it.
        """
        now_s = time.monotonic()
        if not self.sight.loaded:
            self._attempt(lambda: self._read_pools(cluster))
            self._load_jobs(cluster)
            # The watch may have begun after the first jobs were read, so read those that are alive once more.
            due["again"] = now_s + RUNNING_S
            self._set(loaded=True, trouble="")
        with self._lock:
            changed = sorted(self._changed)[:AT_ONCE]
            self._changed.difference_update(changed)
            self._cluster_changed |= bool(changed)
        self._read_jobs(cluster, changed)
        for watched in self._find_watched(changed):
            watched.expire()
        if self._cluster_changed and now_s >= due["pools"]:
            due["pools"] = now_s + SOON_S
            self._cluster_changed = False
            self._read_queue(cluster, unknown=True)
            self._attempt(lambda: self._read_pools(cluster))
        if now_s >= due["running"]:
            due["running"] = now_s + RUNNING_S
            self._put(cluster.jobs.list(states=("running",), page=PAGE))
            self._read_queue(cluster)
            self._attempt(lambda: self._read_pools(cluster))
            self._set(trouble="")
        if now_s >= due["again"] > 0:
            due["again"] = 0.0
            self._read_jobs(cluster, self._find_missed(cluster))
        if now_s >= due["slow"]:
            due["slow"] = now_s + SLOW_S
            self._slow_looks = self._look_slowly(cluster)
        return next(self._slow_looks, LOOK_S)

    def _attempt(self, read: Callable[[], object]) -> str:
        """Read a part of the facts, and return why the controller has refused it; empty: it has not.

        A damaged declaration, for example, must not hide the jobs.

        Raises:
            ElastaneError: the controller does not answer, or the token is not valid any more.
        """
        try:
            read()
        except RequestRefused as error:
            if error.problem.status == HTTPStatus.UNAUTHORIZED:
                raise
            self._set(refused=error.what)
            return error.what
        return ""

    def _read_pools(self, cluster: Cluster) -> None:
        self._set(pools=cluster.occupancy())

    def _load_jobs(self, cluster: Cluster) -> None:
        found = []
        for job in cluster.jobs.list(page=PAGE):
            found.append(job)
            if len(found) % PAGE == 0:
                self._put(found)
                found = []
        self._put(found)

    def _find_missed(self, cluster: Cluster) -> list[str]:
        alive = list(cluster.jobs.list(states=("running", "queued", "paused"), page=PAGE))
        self._put(alive)
        gone = {job.name for job in self.table.list_alive()} - {job.name for job in alive}
        return sorted(gone)

    def _read_jobs(self, cluster: Cluster, names: Iterable[str]) -> None:
        found = []
        for name in names:
            try:
                found.append(cluster.jobs.get(name))
            except NotFound:
                self.table.remove(name)
                self.version += 1
        self._put(found)

    def _read_queue(self, cluster: Cluster, *, unknown: bool = False) -> None:
        """Ask why the first jobs of the queue wait; with ``unknown``, only for those without a reason."""
        shown = self.table.list_queue()[:SHOWN_QUEUE]
        self._read_jobs(cluster, [job.name for job in shown if not (unknown and job.next_decision)])

    def _look_slowly(self, cluster: Cluster) -> Iterator[float]:
        """Read what changes without an event, or slowly, part by part; yield how long to wait after each."""
        # A plan that only finds another reason to wait makes no event.
        waiting = cluster.jobs.list(states=("queued", "paused"), page=PAGE)
        for _ in range(MOST_WAITING // PAGE):
            self._put(islice(waiting, PAGE))
            yield 0.0
        now_s, documents = time.time(), cluster.documents
        refused = []
        for read in (
            lambda: self._set(health=cluster.health()),
            lambda: self._set(teams=documents.list(Team) if self.sight.me.role != "reporter" else ()),
            lambda: self._set(reservations=documents.list(Reservation)),
            lambda: self._set(priorities=tuple(found.name for found in documents.list(PriorityClass))),
            lambda: self._set(day=cluster.figures(from_s=now_s - DAY_S)),
            lambda: self._set(month=cluster.figures()),
            lambda: self._set(uses=cluster.usage("team", "pool", from_s=now_s - 60).rows),
            lambda: self._read_pools(cluster),
        ):
            refused.append(self._attempt(read))
            yield 0.0
        self._set(refused=next(filter(None, refused), ""))
        for number in self.history.list_missing(now_s):
            if self._attempt(partial(self.history.read, cluster, number, now_s)):
                return
            yield 0.0
        self.version += 1

    def _put(self, jobs: Iterable[JobSummary]) -> None:
        if self.table.put(map(summarize, jobs), time.time()):
            self.version += 1

    def _set(self, **facts: object) -> None:
        after = msgspec.structs.replace(self.sight, **facts)
        if after != self.sight:
            self.sight = after
            self.version += 1

    def _explain(self, error: ElastaneError) -> None:
        if isinstance(error, RequestRefused) and error.problem.status == HTTPStatus.UNAUTHORIZED:
            self.refusal = error.what
            self.version += 1
            self.close()
            return
        logger.info("the controller does not answer: %s", error.what)
        self._set(trouble="The controller does not answer. Jobs go on; this page shows what it said last.")


class ClusterFeeds:
    """The feeds of all tokens in use; ``certificate`` is a file to trust; empty: what the machine trusts."""

    def __init__(self, url: str, certificate: str) -> None:
        self._url, self._certificate = url, certificate
        self._feeds: dict[str, ClusterFeed] = {}
        self._lock = threading.Lock()

    def check(self, token: str) -> Me:
        """Return the user of a token.

        Raises:
            RequestRefused: it is not valid.
            ElastaneError: the controller does not answer.
        """
        with Cluster.from_context(self._make_context(token), timeout_s=ASK_S) as cluster:
            return cluster.me()

    def find(self, token: str) -> ClusterFeed:
        """Return the feed of a token, and begin it if there is none.

        Raises:
            RequestRefused: the token is not valid.
            ElastaneError: the controller does not answer.
        """
        with self._lock:
            for name in [name for name, feed in self._feeds.items() if feed.is_over]:
                del self._feeds[name]
            found = self._feeds.get(token)
        if found is None:
            me = self.check(token)
            with self._lock:
                found = self._feeds.get(token)
                if found is None:
                    found = self._feeds[token] = ClusterFeed(self._make_context(token), me)
        found.touch()
        return found

    def close(self) -> None:
        with self._lock:
            for feed in self._feeds.values():
                feed.close()

    def _make_context(self, token: str) -> Context:
        return Context(url=self._url, token=token, certificate=self._certificate)
