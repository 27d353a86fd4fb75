"""Jobs: what was asked for, what was granted, what was seen."""

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, insert, select, update
from sqlalchemy.exc import IntegrityError

from elastane.api.errors import BadInput
from elastane.api.jobs import JobSpec
from elastane.api.wire import ENDED, Explanation, Grant, Job, JobSummary, Observed, Page, State, Use
from elastane.controller.store import rows
from elastane.controller.store.database import changed
from elastane.controller.store.tables import jobs, usage


class NameTaken(BadInput):
    pass


class Ended(BadInput):
    """The job has ended; nothing can be asked of it any more."""


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
        "life": 0,
        "crashes": 0,
        "resizes": 0,
        "preemptions": 0,
        "submitted_s": now_s,
        "retry_at_s": 0.0,
        "using": "[]",
        "using_since_s": now_s,
        "spent": 0.0,
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
    columns = [jobs.c[name] for name in (*_SUMMARY, "submitted_s", "started_s", "ended_s")]
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
    """
    row = _living(tx, name)
    wanted = "cancel" if row.wanted == "cancel" else rows.wanted_by(spec)
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
    values = {"wanted": "cancel", "version": row.version + 1}
    if not job.grant.workers and not job.observed.held and job.state != "running":
        values |= {"state": "cancelled", "ended_s": now_s}
    after = tx.execute(update(jobs).where(jobs.c.name == name).values(values).returning(jobs)).one()
    changed(tx)
    return rows.job_of(after)


# -- what the loop writes ----------------------------------------------------------------------------------


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a job means; None: as before.

    Args:
        job: its name.
        observed: what the engine saw.
        state: where the job is now.
        life: number of its agent processes so far.
        crashes: of its own.
        retry_at_s: not before this time.
        run_dir: where its run lies.
    """

    job: str
    observed: Observed
    state: State | None = None
    life: int | None = None
    crashes: int | None = None
    retry_at_s: float | None = None
    run_dir: str | None = None


def observe(tx: Connection, seen: Iterable[Seen], now_s: float) -> None:
    """Writes down what was seen. A job that has ended holds nothing from now on."""
    some = False
    for one in seen:
        values: dict[str, object] = {
            name: value
            for name in ("state", "life", "crashes", "retry_at_s", "run_dir")
            if (value := getattr(one, name)) is not None
        }
        values |= {"observed": rows.text_of(one.observed), "step": one.observed.step}
        if one.state in ENDED:
            values |= {"ended_s": now_s, "granted": "{}", "workers": 0, "observed": rows.text_of(_left(one))}
            use(tx, one.job, (), now_s)
        tx.execute(update(jobs).where(jobs.c.name == one.job).values(values))
        some = True
    if some:
        changed(tx)


def _left(seen: Seen) -> Observed:
    return msgspec.structs.replace(seen.observed, held={})


def grant(
    tx: Connection, name: str, given: Grant, state: State, explained: Explanation, *, now_s: float
) -> None:
    """Gives a job another size; called by `elastane.controller.store.deciding` alone.

    Args:
        tx: a transaction.
        name: of the job.
        given: what it should have from now on.
        state: where that brings it.
        explained: why.
        now_s: the time.
    """
    row = _living(tx, name)
    workers = sum(given.workers.values())
    tx.execute(
        update(jobs)
        .where(jobs.c.name == name)
        .values(
            granted=rows.text_of(given),
            workers=workers,
            state=state,
            explained=rows.text_of(explained),
            resized_s=now_s,
            started_s=row.started_s if row.started_s is not None or not workers else now_s,
            resizes=row.resizes + (1 if row.workers and workers else 0),
            preemptions=row.preemptions + (1 if row.workers and not workers and row.wanted == "run" else 0),
        )
    )


def explanations(tx: Connection) -> dict[str, Explanation]:
    """Of all jobs that have not ended, by name."""
    found = tx.execute(select(jobs.c.name, jobs.c.explained).where(jobs.c.ended_s.is_(None)))
    return {row.name: msgspec.json.decode(row.explained, type=Explanation) for row in found}


def explain(tx: Connection, name: str, explained: Explanation) -> None:
    """Other reasons for the same size."""
    tx.execute(update(jobs).where(jobs.c.name == name).values(explained=rows.text_of(explained)))


def use(tx: Connection, name: str, uses: tuple[Use, ...], now_s: float) -> None:
    """From now on the job uses these devices on these terms; what it used until now becomes usage.

    The open interval is in the job's own row, so that it is never lost and never written twice.
    """
    row = _one(tx, name)
    if rows.uses_of(row) == uses:
        return
    if ended := rows.intervals(row, now_s):
        tx.execute(insert(usage), ended)
    spent = row.spent + rows.cost(rows.uses_of(row), now_s - row.using_since_s)
    tx.execute(
        update(jobs)
        .where(jobs.c.name == name)
        .values(using=rows.text_of(uses), using_since_s=max(now_s, row.using_since_s), spent=spent)
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
