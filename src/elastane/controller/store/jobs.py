"""Jobs: what was asked for, what was granted, what was seen."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from elastane.api.errors import BadInput
from elastane.api.job_records import ENDED, Explanation, Grant, HeldWorkers, ObservedJob, State
from elastane.api.jobs import JobSpec
from elastane.api.plans import Decision
from elastane.api.rest import Job, JobSummary, Page
from elastane.api.usage import Use
from elastane.controller.ending import Ending, forget_at_s
from elastane.controller.noting import Noted
from elastane.controller.placing import still_held
from elastane.controller.standing import Standing, standing_after, stopped_for_others
from elastane.controller.store import records, rows
from elastane.controller.store.columns import text_of
from elastane.controller.store.database import changed
from elastane.controller.store.tables import jobs, usage

MOST_NAMES = 500
"""In one query."""


class NameTaken(BadInput):
    pass


class Ended(BadInput):
    """The job has ended; nothing can be asked of it any more."""


class Unreadable(BadInput):
    """The job's record cannot be read; it can only be cancelled."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs are listed; empty: all.

    Args:
        teams: that may be seen; None: all.
        team: only this one's.
        states: only in these.
        user: only this one's.
        queue: only this one.
        prefix: of the name.
    """

    teams: tuple[str, ...] | None = None
    team: str = ""
    states: tuple[State, ...] = ()
    user: str = ""
    queue: str = ""
    prefix: str = ""


def submit(tx: Connection, spec: JobSpec, user: str, now_s: float) -> Job:
    """A new job, which waits.

    Raises:
        NameTaken: by a job that is there, or was.
    """
    values = rows.of_spec(spec) | {
        "user": user,
        "state": "paused" if spec.run_policy.suspend else "queued",
        "wanted": rows.wanted_by(spec),
        "workers": 0,
        "step": 0,
        "version": 1,
        "granted": "{}",
        "observed": "{}",
        "explained": "{}",
        "run_dir": "",
        "lives": 0,
        "crashes": 0,
        "resizes": 0,
        "preemptions": 0,
        "setbacks": 0,
        "promised": 0,
        "why": "",
        "traceback": "",
        "submitted_s": now_s,
        "retry_at_s": 0.0,
        "using": "[]",
        "using_since_s": now_s,
        "spent": 0.0,
        "active_s": 0.0,
    }
    try:
        with tx.begin_nested():
            row = tx.execute(insert(jobs).values(values).returning(jobs)).one()
    except IntegrityError as error:
        raise NameTaken(
            f"the name {spec.name!r} is taken",
            means="each job of a cluster has a name of its own, also after it has ended",
            do=f"choose another, such as {spec.name}-2",
        ) from error
    changed(tx)
    return rows.job_of(row)


def find(tx: Connection, name: str) -> Job | None:
    row = tx.execute(select(jobs).where(jobs.c.name == name)).one_or_none()
    return rows.job_of(row) if row else None


def page(tx: Connection, filters: Filters, *, after: int | None, limit: int) -> Page[JobSummary]:
    """Newest first.

    Args:
        tx: a transaction.
        filters: which.
        after: number of the last job that was already seen.
        limit: at most so many.
    """
    columns = [jobs.c[name] for name in (*_SUMMARY, "submitted_s", "started_s", "ended_s", "retry_at_s")]
    query = _filtered(select(*columns), filters).order_by(jobs.c.number.desc()).limit(limit + 1)
    if after is not None:
        query = query.where(jobs.c.number < after)
    found = [rows.summary_of(row) for row in tx.execute(query)]
    items = tuple(found[:limit])
    return Page(items=items, after=str(items[-1].number) if len(found) > limit else "")


_SUMMARY = (
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
)


def _filtered(query: Select[Any], filters: Filters) -> Select[Any]:
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


def alive(tx: Connection) -> tuple[Job, ...]:
    """All that have not ended, oldest first."""
    found = tx.execute(select(jobs).where(jobs.c.ended_s.is_(None)).order_by(jobs.c.number))
    return tuple(rows.job_of(row) for row in found)


# -- what people ask ---------------------------------------------------------------------------------------


def respecify(tx: Connection, name: str, spec: JobSpec) -> Job:
    """Another spec for a job, with the same name and team: its sizes, its priority, whether it is held.

    Raises:
        Ended: it is over.
        Unreadable: nobody knows what its spec was.
    """
    row = _living(tx, name)
    check_readable(rows.job_of(row))
    wanted = row.wanted if row.wanted in rows.ENDS else rows.wanted_by(spec)
    values = rows.of_spec(spec) | {"wanted": wanted, "version": row.version + 1}
    if row.state in {"queued", "paused"}:
        values["state"] = "paused" if wanted == "pause" else "queued"
    after = tx.execute(update(jobs).where(jobs.c.name == name).values(values).returning(jobs)).one()
    changed(tx)
    return rows.job_of(after)


def cancel(tx: Connection, name: str, now_s: float) -> Job:
    """Asks a job to end; one that holds nothing and was seen to hold nothing has ended at once.

    Raises:
        Ended: it is over, and was not cancelled.
    """
    row = _one(tx, name)
    if row.wanted == "cancel":
        return rows.job_of(row)
    job = rows.job_of(_living(tx, name))
    values = {"wanted": "cancel", "version": job.version + 1}
    if job.unreadable:
        # What it may have begun, the loop ends, and says when it is gone.
        holds = job.state == "running" or bool(job.run_dir)
    else:
        holds = bool(job.grant.workers or job.observed.held) or job.state == "running"
    if not holds:
        values |= {"state": "cancelled", "ended_s": now_s, "forget_at_s": forget_at_s(job.spec, now_s)}
        # What it gave back a moment ago may not have become usage yet, and nobody looks at it again.
        use(tx, name, (), now_s)
    after = tx.execute(update(jobs).where(jobs.c.name == name).values(values).returning(jobs)).one()
    changed(tx)
    return rows.job_of(after)


# -- what the loop writes ----------------------------------------------------------------------------------


def end(tx: Connection, name: str, ending: Ending) -> None:
    """The job is to end by its own rules; like a cancelled one, it has ended once it is gone."""
    values = {"wanted": ending.wanted, "why": ending.why, "version": jobs.c.version + 1}
    tx.execute(update(jobs).where(jobs.c.name == name).values(values))
    changed(tx)


def unsettled(tx: Connection) -> frozenset[str]:
    """Names of jobs that have not ended and hold devices, or may. One that never began cannot."""
    nothing = (jobs.c.state.in_(("queued", "paused"))) & (jobs.c.granted == "{}") & (jobs.c.run_dir == "")
    return frozenset(tx.execute(select(jobs.c.name).where(jobs.c.ended_s.is_(None), ~nothing)).scalars())


def in_pool(tx: Connection, pool: str) -> tuple[str, ...]:
    """Names of jobs that were granted devices of a pool, or were seen to hold some; oldest first."""
    query = select(jobs.c.name, jobs.c.granted, jobs.c.observed).where(jobs.c.state == "running")
    found = tx.execute(query.order_by(jobs.c.number))
    return tuple(row.name for row in found if records.may_hold_in(pool, row.granted, row.observed))


def of_class(tx: Connection, priority_class: str) -> tuple[str, ...]:
    """Names of jobs that name this priority class and have not ended; oldest first."""
    return _living_names(tx, jobs.c.priority_class == priority_class)


def of_team(tx: Connection, team: str) -> tuple[str, ...]:
    """Names of the team's jobs that have not ended; oldest first."""
    return _living_names(tx, jobs.c.team == team)


def _living_names(tx: Connection, here: ColumnElement[bool]) -> tuple[str, ...]:
    query = select(jobs.c.name).where(here, jobs.c.ended_s.is_(None)).order_by(jobs.c.number)
    return tuple(tx.execute(query).scalars())


def waiting_and_running(tx: Connection) -> int:
    """How many have not ended."""
    return tx.execute(select(func.count()).where(jobs.c.ended_s.is_(None))).scalar_one()


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What a team has in the store.

    Args:
        jobs: that have not ended.
        of_user: those of one user.
        spec_bytes: of all its jobs, also of those that have ended.
    """

    jobs: int
    of_user: int
    spec_bytes: int


def taken_by(tx: Connection, team: str, user: str) -> Taken:
    """What the team has, and how many jobs this user has in it."""
    here = jobs.c.team == team
    living = select(func.count()).where(here, jobs.c.ended_s.is_(None))
    stored = select(func.coalesce(func.sum(jobs.c.spec_bytes), 0)).where(here)
    return Taken(
        jobs=tx.execute(living).scalar_one(),
        of_user=tx.execute(living.where(jobs.c.user == user)).scalar_one(),
        spec_bytes=int(tx.execute(stored).scalar_one()),
    )


def named(tx: Connection, names: Collection[str]) -> tuple[Job, ...]:
    """Those of these names that there are, ended or not."""
    found: list[Job] = []
    for some in _portions(names):
        found += (rows.job_of(row) for row in tx.execute(select(jobs).where(jobs.c.name.in_(some))))
    return tuple(found)


def _portions(names: Collection[str]) -> Iterator[list[str]]:
    left = iter(names)
    while some := list(islice(left, MOST_NAMES)):
        yield some


def note(tx: Connection, noted: Iterable[Noted], now_s: float) -> None:
    """Writes down what was seen. A job that has ended holds nothing from now on."""
    some = False
    for one in noted:
        ended = one.state in ENDED
        observed = msgspec.structs.replace(one.observed, held={}) if ended else one.observed
        values: dict[str, object] = {
            "state": one.state,
            "observed": text_of(observed),
            "step": observed.step,
            "lives": one.attempts,
            "crashes": one.crashes,
            "retry_at_s": one.retry_at_s,
            "run_dir": one.run_dir,
            "why": one.why,
            "traceback": one.traceback,
        }
        if ended:
            spec = rows.job_of(_one(tx, one.job)).spec
            values |= {
                "ended_s": now_s,
                "granted": "{}",
                "workers": 0,
                "forget_at_s": forget_at_s(spec, now_s),
            }
            use(tx, one.job, (), now_s)
        tx.execute(update(jobs).where(jobs.c.name == one.job).values(values))
        some = True
    if some:
        changed(tx)


def grant(tx: Connection, decision: Decision, given: Grant, explained: Explanation, *, now_s: float) -> Job:
    """Gives a job another size; called by `elastane.controller.store.deciding` alone.

    Args:
        tx: a transaction.
        decision: of the plan.
        given: what the job should have from now on.
        explained: why.
        now_s: the time.

    Returns:
        The job as it was before.
    """
    row = _living(tx, decision.job)
    before = rows.job_of(row)
    workers = sum(given.workers.values())
    standing = standing_after(_standing(row), decision, now_s)
    observed = _expecting(before, given, now_s)
    values = {
        "granted": text_of(given),
        "observed": text_of(observed),
        "workers": workers,
        # One that gives everything back still runs until its workers have been seen gone.
        "state": "running" if workers or observed.held else before.state,
        "explained": text_of(explained),
        "started_s": row.started_s if row.started_s is not None or not workers else now_s,
        "admitted_s": standing.started_s,
        "resized_s": standing.resized_s,
        "setbacks": standing.setbacks,
        "promised": standing.promised,
        "resizes": row.resizes + (1 if row.workers and workers else 0),
        "preemptions": row.preemptions + stopped_for_others(decision),
    }
    tx.execute(update(jobs).where(jobs.c.name == decision.job).values(values))
    return before


def _expecting(before: Job, given: Grant, now_s: float) -> ObservedJob:
    """What a job may hold until it is looked at again, and what it is expected to hold."""
    seen = before.observed.held
    counts = still_held(
        {pool: one.workers for pool, one in seen.items()}, before.grant.workers, given.workers
    )
    held = {
        pool: _counting(seen.get(pool, HeldWorkers(workers=0)), workers) for pool, workers in counts.items()
    }
    total, granted = sum(given.workers.values()), sum(before.grant.workers.values())
    came = sum(one.workers - one.absent + one.lost for one in seen.values())
    grows = total > sum(one.workers for one in held.values())
    # Whoever never arrived is given back; who takes the place of a dead one is given time of its own.
    anew = grows or (before.observed.starting_since_s is not None and total <= came < granted)
    return msgspec.structs.replace(
        before.observed,
        held=held,
        starting_since_s=now_s if anew else before.observed.starting_since_s,
    )


def _counting(seen: HeldWorkers, workers: int) -> HeldWorkers:
    """So many may be held; those that nobody has seen are not there."""
    return msgspec.structs.replace(seen, workers=workers, absent=seen.absent + workers - seen.workers)


def _standing(row: Row[Any]) -> Standing:
    return Standing(
        started_s=row.admitted_s, resized_s=row.resized_s, setbacks=row.setbacks, promised=row.promised
    )


class Told(msgspec.Struct, frozen=True):
    """What a job was last told by a plan, beside its size."""

    sentences: tuple[str, ...]
    promised: int


def told(tx: Connection, names: Collection[str] | None = None) -> dict[str, Told]:
    """By name; None: all jobs that have not ended."""
    columns = select(jobs.c.name, jobs.c.explained, jobs.c.promised)
    if names is None:
        found = list(tx.execute(columns.where(jobs.c.ended_s.is_(None))))
    else:
        found = [row for some in _portions(names) for row in tx.execute(columns.where(jobs.c.name.in_(some)))]
    return {row.name: Told(records.explanation_of(row.explained).sentences, row.promised) for row in found}


def explain(tx: Connection, others: Mapping[str, Told], now_s: float) -> None:
    """Other reasons for the same sizes."""
    if others:
        here = update(jobs).where(jobs.c.name == bindparam("job"))
        tx.execute(
            here.values(explained=bindparam("words"), promised=bindparam("size")),
            [
                {
                    "job": name,
                    "words": text_of(Explanation(sentences=one.sentences, decided_s=now_s)),
                    "size": one.promised,
                }
                for name, one in others.items()
            ],
        )


def using(tx: Connection) -> dict[str, tuple[Use, ...]]:
    """What every job that has not ended uses, by name.

    Those that use nothing are not among them, nor those of which nobody can read what they use.
    """
    query = select(jobs.c.name, jobs.c.using).where(jobs.c.ended_s.is_(None), jobs.c.using != "[]")
    return {row.name: uses for row in tx.execute(query) if (uses := records.uses_of(row))}


def use(tx: Connection, name: str, uses: tuple[Use, ...], now_s: float) -> None:
    """From now on the job uses these devices on these terms; what it used until now becomes usage.

    If nobody can read what it used, that is lost.

    The open interval is in the job's own row, so that it is never lost and never written twice.
    """
    row = _one(tx, name)
    before = records.uses_of(row)
    if before == uses:
        return
    plain = records.record_of(row).plain
    if ended := rows.intervals(row, now_s):
        tx.execute(insert(usage), ended)
    spent = plain["spent"] + rows.cost(before or (), now_s - plain["using_since_s"])
    since_s = max(now_s, plain["using_since_s"])
    before_s = plain["active_since_s"]
    active_s = plain["active_s"] + (since_s - before_s if before_s is not None and not uses else 0.0)
    tx.execute(
        update(jobs)
        .where(jobs.c.name == name)
        .values(
            using=text_of(uses),
            using_since_s=since_s,
            spent=spent,
            active_s=active_s,
            active_since_s=(since_s if before_s is None else before_s) if uses else None,
        )
    )


def run_dir(tx: Connection, name: str) -> str:
    """Where the job's run lies; empty: it never began."""
    found: str = tx.execute(select(jobs.c.run_dir).where(jobs.c.name == name)).scalar_one()
    return found


def _one(tx: Connection, name: str) -> Row[Any]:
    return tx.execute(select(jobs).where(jobs.c.name == name)).one()


def _living(tx: Connection, name: str) -> Row[Any]:
    row = _one(tx, name)
    living(name, row.state)
    return row


def release(tx: Connection, name: str, state: State, why: str, now_s: float) -> None:
    """A job whose record cannot be read holds nothing any more.

    Args:
        tx: a transaction that writes.
        name: of the job.
        state: it has now.
        why: how it ended, or its last attempt did.
        now_s: the time.
    """
    use(tx, name, (), now_s)
    values: dict[str, object] = {"state": state, "granted": "{}", "workers": 0, "observed": "{}", "why": why}
    if state in ENDED:
        values["ended_s"] = now_s
    tx.execute(update(jobs).where(jobs.c.name == name).values(values))
    changed(tx)


def check_readable(job: Job) -> None:
    """Go on if something can be asked of the job, beside that it ends.

    Raises:
        Unreadable: its record cannot be read.
    """
    if job.unreadable:
        raise Unreadable(
            f"the record of job {job.name!r} cannot be read: {job.unreadable}",
            means="nobody knows what was asked for, so nothing of it can be changed",
            do=f"cancel it (elastane cancel {job.name}) and submit it again under another name, "
            "or have an operator put back a backup of the store",
        )


def living(name: str, state: State) -> None:
    """Goes on if a job in this state can still be asked for something.

    Raises:
        Ended: it is over.
    """
    if state in ENDED:
        raise Ended(
            f"job {name!r} {'was' if state == 'cancelled' else 'has'} {state}",
            means="nothing can be asked of it any more",
            do="submit it again under another name",
        )
