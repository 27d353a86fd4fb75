"""What metrics count in the store: sums over jobs, events and usage, made by the database where it can."""

from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import Connection, func, or_, select

from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.store import rows
from elastane.cluster.controller.store.columns import is_moment
from elastane.cluster.controller.store.jobs import SUMMARY
from elastane.cluster.controller.store.tables import events, jobs
from elastane.cluster.nouns.usage import Use


class JobCount(msgspec.Struct, frozen=True):
    """The jobs of a team in one state, and since when the first of them has had its size."""

    team: str
    state: str
    jobs: int
    oldest_s: float


class EventCount(msgspec.Struct, frozen=True):
    team: str
    kind: str
    events: int


class EgressSpent(msgspec.Struct, frozen=True):
    """The cost of all bytes that the job of this number has sent between sites."""

    number: int
    team: str
    spent: float


def count_jobs(tx: Connection) -> tuple[JobCount, ...]:
    """Count the jobs that have not ended, by team and state."""
    since = func.min(func.coalesce(jobs.c.resized_s, jobs.c.submitted_s))
    query = select(jobs.c.team, jobs.c.state, func.count(), since).where(jobs.c.ended_s.is_(None))
    found = tx.execute(query.group_by(jobs.c.team, jobs.c.state).order_by(jobs.c.team, jobs.c.state))
    return tuple(JobCount(*row) for row in found)


def list_uses(tx: Connection) -> Iterator[tuple[str, Use]]:
    """Yield the devices that jobs use now, each with the team of the job."""
    query = select(jobs.c.team, jobs.c.using).where(jobs.c.ended_s.is_(None), jobs.c.using != "[]")
    for row in tx.execute(query):
        for use in rows.decode_uses(row.using) or ():
            yield row.team, use


def list_egress_spent(tx: Connection, after_s: float) -> tuple[EgressSpent, ...]:
    """Return what bytes between sites have cost the jobs that have not ended before a time."""
    query = select(jobs.c.number, jobs.c.team, jobs.c.egress).where(
        jobs.c.egress != "{}", or_(jobs.c.ended_s.is_(None), jobs.c.ended_s >= after_s)
    )
    return tuple(
        EgressSpent(row.number, row.team, account.spent)
        for row in tx.execute(query)
        if (account := rows.decode_egress(row.egress)) is not None
    )


def list_running_jobs(tx: Connection, limit: int) -> tuple[StoredJob, ...]:
    """Return the oldest jobs that run, with the columns of a list."""
    query = select(*(jobs.c[name] for name in SUMMARY)).where(jobs.c.state == "running")
    found: Any = tx.execute(query.order_by(jobs.c.number).limit(limit))
    return tuple(rows.decode_job(row) for row in found)


def count_events(tx: Connection, after: int, until: int) -> tuple[EventCount, ...]:
    """Count the events of jobs by team and kind.

    Args:
        after: number of the last event that was counted already.
        until: number of the last event to count.
    """
    query = select(events.c.team, events.c.kind, func.count())
    query = query.where(events.c.id > after, events.c.id <= until, events.c.team.is_not(None))
    found = tx.execute(query.group_by(events.c.team, events.c.kind))
    return tuple(EventCount(*row) for row in found)


def list_queue_times(tx: Connection, after: int, until: int) -> Iterator[tuple[str, float]]:
    """Yield the team of each job that got its first devices in these events, and its wait."""
    query = select(jobs.c.team, jobs.c.submitted_s, jobs.c.started_s).join(
        events, events.c.job == jobs.c.name
    )
    query = query.where(
        events.c.id > after,
        events.c.id <= until,
        events.c.kind == "job.started",
        # A job that was stopped starts again later.
        events.c.time_s == jobs.c.started_s,
    )
    for row in tx.execute(query):
        if is_moment(row.submitted_s) and is_moment(row.started_s):
            yield row.team, max(0.0, row.started_s - row.submitted_s)


def map_run_dirs(tx: Connection, job: str = "") -> dict[str, str]:
    """Return the run directory of each job that runs and has begun; with ``job``, only of this one."""
    query = select(jobs.c.name, jobs.c.run_dir).where(jobs.c.state == "running", jobs.c.run_dir != "")
    if job:
        query = query.where(jobs.c.name == job)
    return {row.name: row.run_dir for row in tx.execute(query)}
