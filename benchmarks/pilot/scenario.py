"""A scenario: the jobs that users submit, and the events of the cluster, with their times."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from elastane.cluster.nouns.config import Config, Once, Reservation
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.document_parser import parse_document
from elastane.common.documents import read_yaml
from elastane.common.errors import BadInput

History: TypeAlias = tuple[tuple[float, int], ...]
"""The values of one number over time: ``(from this second on, value)``, ascending."""


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The base of all parts of a scenario; an unknown field is an error."""


class Capacity(Part, frozen=True, kw_only=True):
    """A reporter reports the number of devices of a pool."""

    pool: str
    devices: int


class Price(Part, frozen=True, kw_only=True):
    """An operator declares another price for an hour of a device of the pool."""

    pool: str
    price: float


class Priority(Part, frozen=True, kw_only=True):
    """The owner of a job gives it another priority."""

    job: str
    priority_class: str


class Reserve(Part, frozen=True, kw_only=True):
    """The calendar reserves devices of a pool from one second of the pilot to another."""

    name: str
    pool: str
    devices: int
    from_s: float
    until_s: float
    announced_ahead_s: float


class Kill(Part, frozen=True, kw_only=True):
    """SIGKILL for a process of a job.

    Args:
        process: of a ``machine`` the agent is killed, and its workers end with it.
        site: of the machine; empty for other processes.
    """

    job: str
    process: Literal["agent", "worker", "machine"]
    site: str = ""


class Reached(Part, frozen=True, kw_only=True):
    """A job has committed a step, or has ended."""

    job: str
    step: int


class ScenarioEvent(Part, frozen=True, kw_only=True):
    """One event; exactly one of the other fields is given.

    Args:
        at: the second of the pilot at which it happens.
        after: it does not happen before that; None: it depends on no job.
    """

    at: float
    after: Reached | None = None
    capacity: Capacity | None = None
    price: Price | None = None
    priority: Priority | None = None
    reserve: Reserve | None = None
    kill: Kill | None = None

    @property
    def what(self) -> Capacity | Price | Priority | Reserve | Kill:
        found = [self.capacity, self.price, self.priority, self.reserve, self.kill]
        (one,) = (each for each in found if each is not None)
        return one


class Submission(Part, frozen=True, kw_only=True):
    """A job that a user submits.

    Args:
        at: the second of the pilot at which the job is submitted.
        name: the name of the job.
        team: the owner of the job; a submitter of that team submits it.
        ideal: the number of workers of the job in the fixed arm.
        ends: the expected state of the job at the end.
        spec: the rest of the job's spec.
    """

    at: float
    name: str
    team: str
    ideal: int
    spec: dict[str, Any]
    ends: Literal["finished", "failed"] = "finished"


class Scenario(Part, frozen=True, kw_only=True):
    """A scenario.

    Args:
        name: the title of the report.
        microbatch_s: the shortest time of a device for one microbatch, in seconds.
        virtual_ranks: the number of microbatches in a step of every job.
        timeout_s: a pilot that takes longer fails.
        cluster: the cluster as operators declare it.
        jobs: the jobs in the order of their submission.
        events: the events in any order.
    """

    name: str
    microbatch_s: float
    virtual_ranks: int
    timeout_s: float
    cluster: Config
    jobs: tuple[Submission, ...]
    events: tuple[ScenarioEvent, ...] = ()

    def make_spec(self, submission: Submission, root: Path, env: Mapping[str, str]) -> JobSpec:
        """Return the job spec of a submission.

        Args:
            submission: a submission of the scenario.
            root: the folder of the repository.
            env: variables to add to the job's environment.

        Raises:
            BadField: the result is not a job spec.
        """
        written = {"name": submission.name, "team": submission.team} | submission.spec
        spec = parse_document(written, JobSpec, f"spec of {submission.name}")
        return msgspec.structs.replace(spec, script=str(root / spec.script), env={**spec.env, **env})


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        BadInput: the file is not a valid scenario.
    """
    try:
        document = read_yaml(path.read_bytes())
    except (OSError, BadInput) as error:
        raise BadInput(
            f"{path} cannot be read ({error})", do="name a file like benchmarks/pilot/shared.yaml"
        ) from error
    found = parse_document(document, Scenario, "scenario")
    names = {job.name for job in found.jobs}
    for one in found.events:
        given = [each for each in (one.capacity, one.price, one.priority, one.reserve, one.kill) if each]
        if len(given) != 1:
            raise BadInput(
                f"at {one.at:g}: {len(given)} events in one line", do="write exactly one event in each line"
            )
        named = [each for each in (one.after, one.what) if isinstance(each, Reached | Priority | Kill)]
        for each in named:
            if each.job not in names:
                raise BadInput(f"at {one.at:g}: no job {each.job!r}", do=f"name one of {sorted(names)}")
    return found


def fix_size(spec: JobSpec, ideal: int) -> JobSpec:
    """Return the same job with one size, the ideal one."""
    policy = msgspec.structs.replace(
        spec.elastic_policy, min_replicas=ideal, max_replicas=ideal, replica_discrete_values=()
    )
    return msgspec.structs.replace(spec, elastic_policy=policy)


def make_reservation(event: Reserve, began_s: float) -> Reservation:
    """Return a reservation of the calendar.

    Args:
        event: the event, with times in seconds of the pilot.
        began_s: the beginning of the pilot, in seconds since 1970.
    """
    return Reservation(
        name=event.name,
        pool=event.pool,
        devices=event.devices,
        when=Once(start=_make_time(began_s + event.from_s), end=_make_time(began_s + event.until_s)),
        announced_ahead_s=event.announced_ahead_s,
    )


def _make_time(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def compute_capacity(scenario: Scenario) -> dict[str, History]:
    """Return the devices that jobs can have in each pool, from second 0 on."""
    found = {}
    for pool in scenario.cluster.pools or ():
        events = [(one.at, one.what) for one in scenario.events]
        reports = sorted(
            (at_s, it.devices) for at_s, it in events if isinstance(it, Capacity) and it.pool == pool.name
        )
        reserved = [it for _, it in events if isinstance(it, Reserve) and it.pool == pool.name]
        ends = {at_s for one in reserved for at_s in (one.from_s, one.until_s)}
        moments = sorted({0.0, *(at_s for at_s, _ in reports), *ends})
        found[pool.name] = tuple(
            (at_s, _count_devices(at_s, pool.devices, reports, reserved)) for at_s in moments
        )
    return found


def _count_devices(
    at_s: float, declared: int, reports: Sequence[tuple[float, int]], reserved: Sequence[Reserve]
) -> int:
    reported = [devices for from_s, devices in reports if from_s <= at_s]
    gone = sum(one.devices for one in reserved if one.from_s <= at_s < one.until_s)
    return max(0, min([declared, *reported[-1:]]) - gone)


def compute_device_s(history: History, until_s: float) -> float:
    """Return the device-seconds of one pool from second 0 to ``until_s``."""
    ends = [*(from_s for from_s, _ in history[1:]), until_s]
    spans = zip(history, ends, strict=True)
    return sum(devices * max(0.0, min(end_s, until_s) - from_s) for (from_s, devices), end_s in spans)
