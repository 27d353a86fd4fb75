"""Jobs: queries and changes of their rows, and what stays of forgotten jobs."""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from elastane.cluster.controller.figures import JobTimes
from elastane.cluster.controller.jobs.accounts import close_intervals
from elastane.cluster.controller.jobs.egress_account import list_closed_egress
from elastane.cluster.controller.jobs.stored_job import JobNameTaken, SizeReason, StoredJob
from elastane.cluster.controller.store import code_rows, rows
from elastane.cluster.controller.store.columns import encode_json, is_moment
from elastane.cluster.controller.store.database import count_change
from elastane.cluster.controller.store.tables import decisions, egress, events, forgotten, jobs, usage
from elastane.cluster.nouns.job_records import State, Wanted
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.usage import Use
from elastane.common.bodies import Page, cut_page

MOST_NAMES = 500
"""Limit of one query."""

MOST_EARLIER = 50
"""Jobs among which one with the same program is looked for."""
FORGOTTEN_AT_ONCE = 500


class JobFilters(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a list; empty: all.

    Args:
        teams: only of these teams; None: of all.
        prefix: only with this prefix of the name.
    """

    teams: tuple[str, ...] | None = None
    team: str = ""
    states: tuple[State, ...] = ()
    user: str = ""
    queue: str = ""
    prefix: str = ""


SUMMARY = (
    "number",
    "name",
    "team",
    "user",
    "queue",
    "priority_class",
    "state",
    "wanted",
    "workers",
    "step",
    "spec",
    "observed",
    "using",
    "submitted_s",
    "started_s",
    "ended_s",
    "retry_at_s",
)
"""Columns of a list of jobs, but the reason of the newest plan."""
PLANNED = (
    "number",
    "name",
    "team",
    "state",
    "workers",
    "spec",
    "wanted",
    "granted",
    "observed",
    "submitted_s",
    "admitted_s",
    "resized_s",
    "setbacks",
    "promised",
    "retry_at_s",
    "using",
    "using_since_s",
    "spent",
)
"""Columns that a plan depends on."""


# -- reading -----------------------------------------------------------------------------------------------


def find_job(tx: Connection, name: str) -> StoredJob | None:
    """Return the job of this name; None: there is none."""
    row = tx.execute(select(jobs).where(jobs.c.name == name)).one_or_none()
    return rows.decode_job(row) if row else None


def find_jobs(tx: Connection, names: Collection[str]) -> tuple[StoredJob, ...]:
    """Return the jobs of these names, ended or not."""
    found: list[StoredJob] = []
    for some in split_names(names):
        found += (rows.decode_job(row) for row in tx.execute(select(jobs).where(jobs.c.name.in_(some))))
    return tuple(found)


def find_earlier_job(tx: Connection, spec: JobSpec) -> StoredJob | None:
    """Return the newest ended job of the team that was measured with the same program; None: there is none.

    Only the newest `MOST_EARLIER` jobs count.
    """
    query = select(*(jobs.c[name] for name in SUMMARY)).where(
        jobs.c.team == spec.team, jobs.c.ended_s.is_not(None)
    )
    for row in tx.execute(query.order_by(jobs.c.number.desc()).limit(MOST_EARLIER)):
        found = rows.decode_job(row)
        if found.observed.speeds and _is_same_program(found.spec, spec):
            return found
    return None


def _is_same_program(one: JobSpec, other: JobSpec) -> bool:
    """Return whether two jobs run the same file on as many devices, with any arguments."""

    def describe(spec: JobSpec) -> tuple[object, ...]:
        program = spec.script, spec.module, spec.command[:2], spec.working_dir, spec.code
        return *program, spec.processes, spec.worker_devices, spec.resources_per_worker.kinds

    return describe(one) == describe(other)


def find_run_dir(tx: Connection, name: str) -> str:
    """Return the directory of the job's run; empty: it never began."""
    found: str = tx.execute(select(jobs.c.run_dir).where(jobs.c.name == name)).scalar_one()
    return found


def list_job_times(tx: Connection, from_s: float, teams: tuple[str, ...] | None) -> tuple[JobTimes, ...]:
    """Return the times of the jobs of teams that were alive after a time; None: of all."""
    columns = (jobs.c.state, jobs.c.wanted, jobs.c.submitted_s, jobs.c.started_s, jobs.c.ended_s)
    query = select(*columns).where(or_(jobs.c.ended_s.is_(None), jobs.c.ended_s >= from_s))
    if teams is not None:
        query = query.where(jobs.c.team.in_(teams))
    return tuple(
        JobTimes(row.state, row.submitted_s, row.started_s, row.ended_s, reached=row.wanted == "finish")
        for row in tx.execute(query)
        if is_moment(row.submitted_s)
    )


def list_job_page(tx: Connection, filters: JobFilters, *, after: int | None, limit: int) -> Page[StoredJob]:
    """Return the newest jobs after the last one of the slice before, with the columns of a list."""
    query = _filter(select(*(jobs.c[name] for name in (*SUMMARY, "explained"))), filters)
    query = query.order_by(jobs.c.number.desc()).limit(limit + 1)
    if after is not None:
        query = query.where(jobs.c.number < after)
    found = [rows.decode_job(row) for row in tx.execute(query)]
    return cut_page(found, limit, lambda job: job.number)


def _filter(query: Select[Any], filters: JobFilters) -> Select[Any]:
    if filters.teams is not None:
        query = query.where(jobs.c.team.in_(filters.teams))
    for column, wanted in (("team", filters.team), ("user", filters.user), ("queue", filters.queue)):
        if wanted:
            query = query.where(jobs.c[column] == wanted)
    if filters.states:
        query = query.where(jobs.c.state.in_(filters.states))
    if filters.prefix:
        query = query.where(jobs.c.name.startswith(filters.prefix, autoescape=True))
    return query


def list_planned_jobs(tx: Connection, *, running: bool = False) -> tuple[StoredJob, ...]:
    """Return the jobs that have not ended, or that hold devices, as a plan needs them, oldest first."""
    here = jobs.c.state == "running" if running else jobs.c.ended_s.is_(None)
    query = select(*(jobs.c[name] for name in PLANNED)).where(here).order_by(jobs.c.number)
    return tuple(rows.decode_job(row) for row in tx.execute(query))


def map_unsettled_jobs(tx: Connection) -> dict[str, Wanted]:
    """Return the wanted states of jobs that have not ended and may hold devices, by name.

    A job that never began can hold none.
    """
    nothing = (jobs.c.state.in_(("queued", "paused"))) & (jobs.c.granted == "{}") & (jobs.c.run_dir == "")
    query = select(jobs.c.name, jobs.c.wanted).where(jobs.c.ended_s.is_(None), ~nothing)
    return {row.name: row.wanted for row in tx.execute(query)}


def list_jobs_in_pool(tx: Connection, pool: str) -> tuple[str, ...]:
    """Return the names of jobs that were granted devices of a pool, or held some there; oldest first."""
    query = select(jobs.c.name, jobs.c.granted, jobs.c.observed).where(jobs.c.state == "running")
    found = tx.execute(query.order_by(jobs.c.number))
    return tuple(row.name for row in found if rows.may_hold_in(pool, row.granted, row.observed))


def list_jobs_of_class(tx: Connection, priority_class: str) -> tuple[str, ...]:
    """Return the names of jobs of this priority class that have not ended; oldest first."""
    return _list_living_names(tx, jobs.c.priority_class == priority_class)


def list_jobs_of_team(tx: Connection, team: str) -> tuple[str, ...]:
    """Return the names of the team's jobs that have not ended; oldest first."""
    return _list_living_names(tx, jobs.c.team == team)


def _list_living_names(tx: Connection, here: ColumnElement[bool]) -> tuple[str, ...]:
    query = select(jobs.c.name).where(here, jobs.c.ended_s.is_(None)).order_by(jobs.c.number)
    return tuple(tx.execute(query).scalars())


def map_teams(tx: Connection) -> dict[str, str]:
    """Return the team of each job that has not ended."""
    found = tx.execute(select(jobs.c.name, jobs.c.team).where(jobs.c.ended_s.is_(None)))
    return {row.name: row.team for row in found}


def count_living_jobs(tx: Connection) -> int:
    """Return the number of jobs that have not ended."""
    return tx.execute(select(func.count()).where(jobs.c.ended_s.is_(None))).scalar_one()


class TeamUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a team.

    Args:
        jobs: that have not ended.
        of_user: of these, the jobs of one user.
        spec_bytes: of all its jobs, ended ones included.
    """

    jobs: int
    of_user: int
    spec_bytes: int


def measure_team(tx: Connection, team: str, user: str) -> TeamUsage:
    """Return how many jobs the team has, and this user in it."""
    here = jobs.c.team == team
    living = select(func.count()).where(here, jobs.c.ended_s.is_(None))
    stored = select(func.coalesce(func.sum(jobs.c.spec_bytes), 0)).where(here)
    return TeamUsage(
        jobs=tx.execute(living).scalar_one(),
        of_user=tx.execute(living.where(jobs.c.user == user)).scalar_one(),
        spec_bytes=int(tx.execute(stored).scalar_one()),
    )


class PlannedSize(msgspec.Struct, frozen=True):
    """The reason of a job's size, and the size that the plan has promised."""

    reason: SizeReason
    promised: int


def map_planned_sizes(tx: Connection, names: Collection[str] | None = None) -> dict[str, PlannedSize]:
    """Return the newest reason of each job; None: of all jobs that have not ended."""
    columns = select(jobs.c.name, jobs.c.explained, jobs.c.promised)
    if names is None:
        found = list(tx.execute(columns.where(jobs.c.ended_s.is_(None))))
    else:
        found = [
            row for some in split_names(names) for row in tx.execute(columns.where(jobs.c.name.in_(some)))
        ]
    return {row.name: PlannedSize(rows.decode_reason(row.explained), row.promised) for row in found}


def map_uses(tx: Connection) -> dict[str, tuple[Use, ...]]:
    """Return the devices that each job uses that has not ended.

    It lacks the jobs that use nothing, and those with uses that cannot be read.
    """
    query = select(jobs.c.name, jobs.c.using).where(jobs.c.ended_s.is_(None), jobs.c.using != "[]")
    return {row.name: uses for row in tx.execute(query) if (uses := rows.decode_uses(row.using))}


def split_names(names: Collection[str]) -> Iterator[list[str]]:
    """Yield names in lists that a query may have."""
    left = iter(names)
    while some := list(islice(left, MOST_NAMES)):
        yield some


# -- writing -----------------------------------------------------------------------------------------------


def insert_job(tx: Connection, job: StoredJob) -> StoredJob:
    """Store a new job, and return it with its number.

    Raises:
        JobNameTaken: another job has or had its name.
    """
    try:
        with tx.begin_nested():
            row = tx.execute(insert(jobs).values(rows.encode_job(job)).returning(jobs)).one()
    except IntegrityError as error:
        raise JobNameTaken(
            f"the name {job.name!r} is taken",
            means="each job of a cluster has a name of its own, also after it has ended",
            do=f"choose another, such as {job.name}-2",
        ) from error
    count_change(tx)
    return rows.decode_job(row)


def update_job(tx: Connection, before: StoredJob, after: StoredJob, *, always: tuple[str, ...] = ()) -> None:
    """Store a changed job, and count the change.

    Args:
        tx: a transaction that writes, in which ``before`` was read.
        always: fields that are written even if they are equal, because the stored ones may be unreadable.
    """
    write_job(tx, before, after, always=always)
    count_change(tx)


def write_job(tx: Connection, before: StoredJob, after: StoredJob, *, always: tuple[str, ...] = ()) -> None:
    """Store a changed job, and its usage if its uses have changed. See `update_job`."""
    values = rows.encode_changes(before, after, always)
    if before.uses != after.uses and after.using_since_s is not None:
        insert_usage(tx, before, after.using_since_s)
    _insert_egress(tx, before, after)
    if values:
        tx.execute(update(jobs).where(jobs.c.name == after.name).values(values))


def insert_usage(tx: Connection, job: StoredJob, until_s: float) -> None:
    """Store what the job has used until a time.

    The open interval is in the row of the job, so it is never lost and never stored twice.
    """
    ended = close_intervals(job.uses, job.using_since_s, until_s)
    if ended:
        owner = {"job": job.name, "team": job.team, "user": job.user}
        tx.execute(insert(usage), [owner | msgspec.structs.asdict(interval) for interval in ended])


def _insert_egress(tx: Connection, before: StoredJob, after: StoredJob) -> None:
    """Store what a job has sent between sites in an interval that this change closes."""
    ended = list_closed_egress(before.egress, after.egress)
    if ended:
        owner = {"job": after.name, "team": after.team, "user": after.user}
        tx.execute(insert(egress), [owner | msgspec.structs.asdict(interval) for interval in ended])


def update_reasons(tx: Connection, sizes: Mapping[str, PlannedSize]) -> None:
    """Store other reasons for the same sizes, by job."""
    if sizes:
        here = update(jobs).where(jobs.c.name == bindparam("job"))
        tx.execute(
            here.values(explained=bindparam("words"), promised=bindparam("size")),
            [
                {"job": name, "words": encode_json(size.reason), "size": size.promised}
                for name, size in sizes.items()
            ],
        )


def list_due_jobs(tx: Connection, now_s: float) -> tuple[StoredJob, ...]:
    """Return some of the jobs that are to be forgotten now."""
    query = (
        select(jobs).where(jobs.c.forget_at_s <= now_s).order_by(jobs.c.forget_at_s).limit(FORGOTTEN_AT_ONCE)
    )
    return tuple(rows.decode_job(row) for row in tx.execute(query))


def forget_job(tx: Connection, job: StoredJob, now_s: float) -> None:
    """Forget a job that has ended.

    Its record, its events and its decisions are deleted. Its usage, its audit lines and its files stay;
    its name is free once the files are gone.
    """
    # The job goes first: the database refuses to delete the history of an existing job.
    tx.execute(delete(jobs).where(jobs.c.name == job.name))
    tx.execute(delete(events).where(events.c.job == job.name))
    tx.execute(delete(decisions).where(decisions.c.job == job.name))
    if job.spec.code and job.ended_s is not None:
        code_rows.record_code_use(tx, job.team, job.spec.code, job.ended_s)
    if job.run_dir:
        tx.execute(insert(forgotten).values(name=job.name, run_dir=job.run_dir, forgotten_s=now_s))


def find_left_files(tx: Connection, name: str) -> str:
    """Return where a forgotten job of this name has left its files; empty: no such job was forgotten."""
    found = tx.execute(select(forgotten.c.run_dir).where(forgotten.c.name == name)).scalar_one_or_none()
    return found or ""


def release_name(tx: Connection, name: str) -> None:
    """Let a new job have the name."""
    tx.execute(delete(forgotten).where(forgotten.c.name == name))
