"""What a job needs of its agents. Pure."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.jobs import JobSpec


class AgentJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a job needs of its agents.

    Args:
        wanted: workers that it should have, by pool; empty: it waits, or is to stop.
        attempt: the number of its present attempt, or of the next one.
        run_dir: absolute path of its run directory, which all machines share.
        submitted_s: in seconds since 1970.
        drain_until_s: when workers beyond the wanted ones should be gone; 0: none was asked to leave.
    """

    spec: JobSpec
    wanted: Mapping[str, int]
    attempt: int
    run_dir: str
    submitted_s: float = 0.0
    drain_until_s: float = 0.0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def limits(self) -> tuple[int, int]:
        """Fewest and most workers."""
        return self.spec.elastic_policy.limits

    @property
    def grace_s(self) -> float:
        """How long a worker that is asked to leave may take."""
        return self.spec.elastic_policy.graceful_shutdown_timeout_in_seconds

    def choose_deadline(self, now_s: float) -> float:
        """Return when an agent that should leave from now on must be gone."""
        return self.drain_until_s if self.drain_until_s > now_s else now_s + self.grace_s


def read_agent_job(job: StoredJob, home: Path) -> AgentJob | None:
    """Return what a stored job needs; None: it has ended, or its record cannot be read."""
    if job.has_ended or job.unreadable:
        return None
    return AgentJob(
        spec=job.spec,
        # Its grant remains until a plan takes it away.
        wanted=job.grant.workers if job.wanted == "run" else {},
        attempt=job.attempts + 1,
        run_dir=str(locate_run_dir(home, job.name)),
        submitted_s=job.submitted_s,
        drain_until_s=job.grant.drain_until_s,
    )


def locate_run_dir(home: Path, job: str) -> Path:
    return home / "runs" / job
