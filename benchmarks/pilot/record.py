"""The record of an arm of the pilot."""

from pathlib import Path

import msgspec
from elastane.cluster.nouns.history import AuditLine, Event
from elastane.cluster.nouns.rest import Job
from elastane.cluster.nouns.usage import UsageRow
from elastane.run.nouns.rundir import RunDir

from pilot.scenario import ScenarioEvent


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """An observation of one job, as the API describes it at that moment.

    Args:
        at_s: the second of the pilot at which this round of observations began.
        job: the name of the job.
        state: the state of the job.
        granted: the granted workers by pool.
        uses: the larger number of granted and observed workers by pool; no other job can use these devices.
        step: the last committed step.
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


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """An action on the cluster from outside, and its time.

    Args:
        at_s: the second of the pilot.
        kind: its name in the scenario.
        text: a description.
        job: the job that it concerns; empty: none.
    """

    at_s: float
    kind: str
    text: str
    job: str = ""


class ArmRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An arm that has ended.

    Args:
        name: the name of the arm.
        home: the folder with its run directories in ``runs`` and the counts of its workers in ``ticks``.
        began_s: the beginning of the arm, in seconds since 1970.
        ended_s: the second of the pilot at which the last job had ended.
        jobs: the jobs at the end, in the order of their submission.
        events: the events of all jobs.
        observations: the observations, in the order of time.
        actions: the actions from outside, in the order of time.
        played: the events of the scenario in this order, with the times at which they have happened.
        usage: the usage by job and pool.
        audit: the audit log, oldest line first.
    """

    name: str
    home: Path
    began_s: float
    ended_s: float
    jobs: tuple[Job, ...]
    events: tuple[Event, ...]
    observations: tuple[Observation, ...]
    actions: tuple[Action, ...]
    played: tuple[ScenarioEvent, ...]
    usage: tuple[UsageRow, ...]
    audit: tuple[AuditLine, ...]

    def run_dir(self, job: str) -> RunDir:
        return RunDir(self.home / "runs" / job)

    def get_ticks_folder(self, job: str) -> Path:
        return self.home / "ticks" / job
