"""The observer: what engines see of jobs and nodes, recorded in the store."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection

from elastane.cluster.controller.clock import has_elapsed
from elastane.cluster.controller.jobs.accounts import charge_egress
from elastane.cluster.controller.jobs.end_rules import EndRequest, check_end_rules, end_by_rule
from elastane.cluster.controller.jobs.explanation import describe_end
from elastane.cluster.controller.jobs.observation_record import (
    changes_the_plan,
    is_worth_storing,
    list_events,
    measure_arrival,
    observe_job,
)
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.jobs.unreadable_jobs import ENDS, RELEASED, release_job
from elastane.cluster.controller.store import documents, history, jobs, nodes, rows
from elastane.cluster.controller.store.database import Store, count_change
from elastane.cluster.nouns.config import EgressPrices
from elastane.cluster.nouns.engine import JobEngine, Observation
from elastane.cluster.nouns.job_records import Wanted

NODES_S = 15.0
"""Nodes are observed this often: on machines that others use too, devices become free at any time."""

logger = logging.getLogger(__name__)


class _Change(NamedTuple):
    """The change of a job by an observation, and the end that its own rules require, if any."""

    job: StoredJob
    after: StoredJob
    end: EndRequest | None


class Observer:
    """The observer of the jobs and nodes of a cluster.

    Args:
        clock: seconds since 1970.
        count_arrival: called with the seconds after which all workers of a job train.

    Attributes:
        seen: the newest observation of each job.
        has_news: the newest observations change the plan, also if recording the rest of them has failed.
    """

    def __init__(
        self,
        store: Store,
        engine: JobEngine,
        clock: Callable[[], float],
        count_arrival: Callable[[float], None],
    ) -> None:
        self._store = store
        self._engine = engine
        self._clock = clock
        self._count_arrival = count_arrival
        self._left_out: dict[str, str] = {}
        self._wanted: Mapping[str, Wanted] = {}
        """The wanted states of jobs when the newest observation began."""
        self._nodes_s = float("-inf")
        self.seen: Mapping[str, Observation] = {}
        self.has_news = False

    def must_see_nodes(self) -> bool:
        """Return whether the last observation of the nodes is too old, as after a machine has slept."""
        return has_elapsed(self._nodes_s, NODES_S, self._clock())

    async def observe(self) -> None:
        """Observe the jobs and the nodes, and record what has changed."""
        self.has_news = False
        with self._store.begin_read() as tx:
            self._wanted = jobs.map_unsettled_jobs(tx)
        self.seen = await self._engine.observe(frozenset(self._wanted))
        now_s = self._clock()
        with self._store.begin_read() as tx:
            known, prices = jobs.find_jobs(tx, self.seen.keys()), self._read_prices(tx)
        self.has_news |= self._release_unreadable(known, now_s)
        if names := [change.job.name for change in self._find_changes(known, prices, now_s)]:
            self.has_news |= self._record_changes(names, now_s)
        if has_elapsed(self._nodes_s, NODES_S, now_s):
            found = await self._engine.observe_nodes()
            with self._store.begin_write() as tx:
                for node in found:
                    nodes.record_node(tx, node.name, node.pool, node.devices, now_s)
            # Set it only after the write: if the disk is full, the nodes are recorded as soon as it has room.
            self._nodes_s = now_s

    def _record_changes(self, names: list[str], now_s: float) -> bool:
        with self._store.begin_write() as tx:
            # People may have changed the jobs since they were read.
            changes = self._find_changes(jobs.find_jobs(tx, names), self._read_prices(tx), now_s)
            for job, after, end in changes:
                last = after if end is None else end_by_rule(after, end)
                jobs.write_job(tx, job, last, always=("observed",))
                for event in list_events(job, after):
                    history.append_event(tx, event.kind, event.message, now_s, team=job.team, job=job.name)
                if end is not None:
                    message = f"{job.name} will end: {end.why}"
                    history.append_event(tx, "job.ending", message, now_s, team=job.team, job=job.name)
            if changes:
                count_change(tx)
        for job, after, _ in changes:
            if (took_s := measure_arrival(job, after, now_s)) is not None:
                self._count_arrival(took_s)
        return any(changes_the_plan(change.job, change.after) or change.end for change in changes)

    def _read_prices(self, tx: Connection) -> tuple[EgressPrices, ...]:
        """Return the prices of bytes between sites; empty if no job has sent any.

        Declarations that cannot be read keep nothing from being observed: what they price costs nothing.
        """
        if not any(seen.crossings for seen in self.seen.values()):
            return ()
        return documents.read_declared_documents(tx)[0].egress or ()

    def _find_changes(
        self, known: Iterable[StoredJob], prices: tuple[EgressPrices, ...], now_s: float
    ) -> list[_Change]:
        """Return the changes of these jobs that are worth storing.

        Args:
            prices: of bytes between sites.
        """
        found = []
        for job in known:
            if not job.has_ended and not job.unreadable and not self._ends_since(job):
                seen = self.seen[job.name]
                paid = charge_egress(job, seen, prices, now_s)
                after = observe_job(paid, seen, now_s)
                end = None if after.has_ended else check_end_rules(job, seen.progress, now_s)
                if end is not None or is_worth_storing(job, after):
                    storable = self._make_storable(paid, after, seen, now_s)
                    if storable is not None:
                        found.append(_Change(job, storable, end))
        return found

    def _ends_since(self, job: StoredJob) -> bool:
        """Return whether a job was asked to end since the observation began.

        Then it may have begun an attempt since, which the observation does not show. The next one does.
        """
        return job.wanted in ENDS and self._wanted.get(job.name) != job.wanted

    def _make_storable(
        self, job: StoredJob, after: StoredJob, seen: Observation, now_s: float
    ) -> StoredJob | None:
        """Return the job after an observation; None: nothing of it can be stored.

        Engines pass on the progress that a job reports. Progress that could not be read back is left out.
        """
        why = rows.explain_unstorable(after.observed)
        if not why:
            return after
        if self._left_out.get(job.name) != why:
            self._left_out[job.name] = why
            logger.warning("part of the observation of job %s is left out: %s", job.name, why)
        after = observe_job(job, msgspec.structs.replace(seen, progress=None), now_s)
        return None if rows.explain_unstorable(after.observed) else after

    def _release_unreadable(self, known: Iterable[StoredJob], now_s: float) -> bool:
        """Free the devices of jobs with unreadable records after their processes are gone."""
        gone = [
            job.name
            for job in known
            if job.unreadable and not job.has_ended and release_job(job, self.seen[job.name], now_s)
        ]
        if not gone:
            return False
        with self._store.begin_write() as tx:
            for job in jobs.find_jobs(tx, gone):
                after = release_job(job, self.seen[job.name], now_s)
                if after is None:
                    continue
                jobs.update_job(tx, job, after, always=RELEASED)
                kind = f"job.{after.state}" if after.has_ended else "job.stopped"
                how = "has given its devices back"
                if after.has_ended:
                    how = describe_end(after.state, after.why)
                history.append_event(tx, kind, f"{job.name} {how}", now_s, team=job.team, job=job.name)
        return True
