"""Jobs that the cluster forgets some time after their end.

The record, the events and the decisions of such a job are deleted. Its usage, its audit lines and
its files stay; its name is free once the files are gone.
"""

from sqlalchemy import Connection, delete, insert, select

from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.store import rows
from elastane.cluster.controller.store.tables import decisions, events, forgotten, jobs

AT_ONCE = 500


def list_due_jobs(tx: Connection, now_s: float) -> tuple[StoredJob, ...]:
    """Return some of the jobs that are to be forgotten now."""
    query = select(jobs).where(jobs.c.forget_at_s <= now_s).order_by(jobs.c.forget_at_s).limit(AT_ONCE)
    return tuple(rows.decode_job(row) for row in tx.execute(query))


def forget_job(tx: Connection, job: StoredJob, now_s: float) -> None:
    """Forget a job that has ended."""
    # The job goes first: the database refuses to delete the history of an existing job.
    tx.execute(delete(jobs).where(jobs.c.name == job.name))
    tx.execute(delete(events).where(events.c.job == job.name))
    tx.execute(delete(decisions).where(decisions.c.job == job.name))
    if job.run_dir:
        tx.execute(insert(forgotten).values(name=job.name, run_dir=job.run_dir, forgotten_s=now_s))


def find_left_files(tx: Connection, name: str) -> str:
    """Return where a forgotten job of this name has left its files; empty: there is none."""
    found = tx.execute(select(forgotten.c.run_dir).where(forgotten.c.name == name)).scalar_one_or_none()
    return found or ""


def release_name(tx: Connection, name: str) -> None:
    """Let a new job have the name."""
    tx.execute(delete(forgotten).where(forgotten.c.name == name))
