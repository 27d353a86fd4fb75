"""Changes of jobs in a store, as the API and the loop make them."""

from typing import Any

import msgspec
from sqlalchemy import Connection

from elastane.cluster.controller.jobs.accounts import charge
from elastane.cluster.controller.jobs.egress_account import EgressAccount
from elastane.cluster.controller.jobs.observation_record import close_job
from elastane.cluster.controller.jobs.requests import cancel_job, create_job
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.store import jobs
from elastane.cluster.nouns.job_records import ENDED, ObservedJob, State
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.usage import BYTES_PER_GB, SentBytes, Use


def submit(tx: Connection, spec: JobSpec, user: str, now_s: float) -> StoredJob:
    return jobs.insert_job(tx, create_job(spec, user, now_s))


def observe(
    tx: Connection, name: str, now_s: float, *, state: State, observed: ObservedJob, **fields: Any
) -> None:
    """Store a state and an observation of a job."""
    (job,) = jobs.find_jobs(tx, [name])
    after = msgspec.structs.replace(job, state=state, observed=observed, step=observed.step, **fields)
    jobs.update_job(tx, job, close_job(after, now_s) if state in ENDED else after)


def use(tx: Connection, name: str, uses: tuple[Use, ...], now_s: float) -> None:
    (job,) = jobs.find_jobs(tx, [name])
    jobs.write_job(tx, job, charge(job, uses, now_s))


def send(tx: Connection, name: str, sent_bytes: int, now_s: float) -> None:
    """Let a job have sent bytes between two sites, at a price of 2 for 10^9."""
    (job,) = jobs.find_jobs(tx, [name])
    account = EgressAccount(
        sent=(SentBytes(source="berlin", target="boston", sent_bytes=sent_bytes, price=2.0),),
        from_s=now_s,
        until_s=now_s,
        spent=sent_bytes / BYTES_PER_GB * 2.0,
    )
    spent = job.spent + account.spent
    jobs.write_job(tx, job, msgspec.structs.replace(job, egress=account, spent=spent))


def cancel(tx: Connection, name: str, now_s: float) -> StoredJob:
    (job,) = jobs.find_jobs(tx, [name])
    after = cancel_job(job, now_s)
    jobs.update_job(tx, job, after)
    return after
