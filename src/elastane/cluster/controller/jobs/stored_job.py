"""A job as the controller stores it. Pure."""

import msgspec

from elastane.cluster.controller.jobs.egress_account import EgressAccount
from elastane.cluster.controller.jobs.size_history import SizeHistory
from elastane.cluster.nouns.job_records import ENDED, Grant, ObservedJob, State, Wanted
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.cluster.nouns.plans import Why
from elastane.cluster.nouns.usage import Use
from elastane.common.bounds import Moment
from elastane.common.errors import BadInput

UNKNOWN_SPEC = JobSpec(name="", team="", elastic_policy=ElasticPolicy(min_replicas=0, max_replicas=0))
"""Replaces a spec that cannot be read."""


class JobEnded(BadInput):
    """The job has ended and accepts no more requests."""


class JobUnreadable(BadInput):
    """The record of the job cannot be read. The job can only be cancelled."""


class JobNameTaken(BadInput):
    """Another job of the cluster has or had this name."""


class SizeReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The reason of a job's size, as the newest plan gives it.

    Args:
        stop: why the job has no workers, as a value: the first reason of the plan. None: it has some, or no
            plan has decided yet.
    """

    stop: Why | None = None
    sentences: tuple[str, ...] = ()
    decided_s: Moment = 0.0


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the controller stores it. `elastane.cluster.nouns.rest.Job` describes the other fields.

    A query that does not read a column leaves the default of its field.

    Args:
        priority_class: as its spec names it; empty: the default of the cluster.
        spec: as submitted, or as changed since; `UNKNOWN_SPEC` if it cannot be read.
        workers: granted in all pools together.
        setbacks, promised, admitted_s, resized_s: see `SizeHistory`.
        forget_at_s: the cluster forgets the job then; None: never.
        uses: devices that it uses and pays for now; None: the record cannot be read.
        using_since_s: it uses these since then; None: the record cannot be read.
        spent: cost of devices until ``using_since_s``, and of bytes between sites until now.
        egress: the account of bytes between sites; None: the record cannot be read.
        active_s: seconds during which it held devices, until ``active_since_s``.
        active_since_s: it holds devices since then; None: it holds none.
        unreadable: the part of the record that cannot be read, so that nothing can be decided about the job.
        guessed: the part of the record that cannot be read, and that the next cycles write again.
    """

    number: int
    name: str
    team: str
    user: str = ""
    queue: str = ""
    priority_class: str = ""
    state: State = "queued"
    wanted: Wanted = "run"
    version: int = 1
    spec: JobSpec
    grant: Grant = Grant()
    observed: ObservedJob = ObservedJob()
    reason: SizeReason = SizeReason()
    workers: int = 0
    step: int = 0
    run_dir: str = ""
    attempts: int = 0
    crashes: int = 0
    resizes: int = 0
    preemptions: int = 0
    setbacks: int = 0
    promised: int = 0
    admitted_s: float | None = None
    resized_s: float | None = None
    why: str = ""
    traceback: str = ""
    submitted_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    retry_at_s: float = 0.0
    forget_at_s: float | None = None
    uses: tuple[Use, ...] | None = ()
    using_since_s: float | None = None
    spent: float = 0.0
    egress: EgressAccount | None = EgressAccount()
    active_s: float = 0.0
    active_since_s: float | None = None
    unreadable: str = ""
    guessed: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def size_history(self) -> SizeHistory:
        return SizeHistory(
            started_s=self.admitted_s,
            resized_s=self.resized_s,
            setbacks=self.setbacks,
            promised=self.promised,
        )


def require_alive(job: StoredJob) -> None:
    """Check that the job accepts requests."""
    if job.has_ended:
        raise JobEnded(
            f"job {job.name!r} {'was' if job.state == 'cancelled' else 'has'} {job.state}",
            means="an ended job accepts no more requests",
            do="submit it again under another name",
        )


def require_readable(job: StoredJob) -> None:
    """Check that the record of the job can be read."""
    if job.unreadable:
        raise JobUnreadable(
            f"the record of job {job.name!r} cannot be read: {job.unreadable}",
            means="its spec is unknown, so the controller cannot change it",
            do=f"cancel it (elastane cancel {job.name}) and submit it again under another name, "
            "or have an operator restore a backup of the store",
        )
