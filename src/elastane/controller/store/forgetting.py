"""Jobs that the cluster forgets some time after their end.

Their record, events and decisions go. What they used stays in the accounts, what people did in the audit log,
and their files where they are; a name comes free when those are gone.
"""

from sqlalchemy import Connection, delete, insert, select

from elastane.api.rest import Job
from elastane.controller.store import rows
from elastane.controller.store.tables import decisions, events, forgotten, jobs

AT_ONCE = 500


def due(tx: Connection, now_s: float) -> tuple[Job, ...]:
    """Some of those whose time has come."""
    query = select(jobs).where(jobs.c.forget_at_s <= now_s).order_by(jobs.c.forget_at_s).limit(AT_ONCE)
    return tuple(rows.job_of(row) for row in tx.execute(query))


def forget(tx: Connection, job: Job, now_s: float) -> None:
    """Forgets a job that has ended."""
    # In this order: the database gives up the history of no job that there is.
    tx.execute(delete(jobs).where(jobs.c.name == job.name))
    tx.execute(delete(events).where(events.c.job == job.name))
    tx.execute(delete(decisions).where(decisions.c.job == job.name))
    if job.run_dir:
        tx.execute(insert(forgotten).values(name=job.name, run_dir=job.run_dir, forgotten_s=now_s))


def files_of(tx: Connection, name: str) -> str:
    """Where a forgotten job of this name has left its files; empty: there was none, or it left none."""
    found = tx.execute(select(forgotten.c.run_dir).where(forgotten.c.name == name)).scalar_one_or_none()
    return found or ""


def release(tx: Connection, name: str) -> None:
    """The name may be had again."""
    tx.execute(delete(forgotten).where(forgotten.c.name == name))
