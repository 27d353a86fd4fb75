"""The records of an arm of the pilot."""

from pathlib import Path

import msgspec
from elastane.api.history import AuditLine, Event
from elastane.api.rest import Job
from elastane.api.rundir import RunDir
from elastane.api.usage import UsageRow


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One job at one moment of the pilot, as the API describes it.

    Args:
        at_s: second of the pilot at which this round of observations began.
        job: its name.
        state: of the job.
        granted: workers by pool.
        uses: workers by pool, the larger of granted and seen: no other job can have their devices.
        step: the last committed one.
    """

    at_s: float
    job: str
    state: str
    granted: dict[str, int]
    uses: dict[str, int]
    step: int

    @property
    def size(self) -> int:
        return sum(self.granted.values())


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """An action on the cluster from outside, and its time.

    Args:
        at_s: second of the pilot.
        kind: its name in the scenario.
        text: for people.
        job: that it concerns; empty: none.
    """

    at_s: float
    kind: str
    text: str
    job: str = ""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """An arm that has ended.

    Args:
        name: of the arm.
        home: has its run directories in ``runs`` and the counts of its workers in ``ticks``.
        began_s: second 0, in seconds since 1970.
        ended_s: second at which the last job had ended.
        jobs: at the end, in the order of their submission.
        events: of all jobs.
        looks: observations, in the order of time.
        deeds: likewise.
        usage: by job and pool.
        audit: the audit log, oldest line first.
    """

    name: str
    home: Path
    began_s: float
    ended_s: float
    jobs: tuple[Job, ...]
    events: tuple[Event, ...]
    looks: tuple[Look, ...]
    deeds: tuple[Deed, ...]
    usage: tuple[UsageRow, ...]
    audit: tuple[AuditLine, ...]

    def run_dir(self, job: str) -> RunDir:
        return RunDir(self.home / "runs" / job)

    def ticks(self, job: str) -> Path:
        return self.home / "ticks" / job
