"""From a job and what was typed about it to a `JobSpec`, or a sentence that says why not. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, TypeVar

import msgspec

from elastane.api.errors import BadInput
from elastane.api.job_checks import check_job_spec
from elastane.api.jobs import ElasticPolicy, JobCheckpoints, JobSpec, JobTraining
from elastane.api.quotas import Team
from elastane.cli.checkpoints.policy import moments
from elastane.cli.option_values import read_future_time
from elastane.cli.runs.run_spec import parse_worker_range
from elastane.cli.teams import warn_undeclared_team

S = TypeVar("S", bound=msgspec.Struct)


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """The options as they were typed; see ``elastane submit --help``. None: not typed."""

    name: str | None = None
    team: str | None = None
    queue: str | None = None
    priority: str | None = None
    workers: str | None = None
    devices: int | None = None
    kinds: tuple[str, ...] | None = None
    spot: bool | None = None
    borrow: bool | None = None
    env: tuple[str, ...] = ()
    deadline: str | None = None
    budget: float | None = None
    retries: int | None = None
    seed: int | None = None
    threads: int | None = None
    virtual_ranks: int | None = None
    convergence: Literal["exact", "fast"] | None = None
    copies: str | None = None
    checkpoint_every: str | None = None
    checkpoint_at: str | None = None
    checkpoint_dir: str | None = None
    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: str | None = None


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when something is typed.

    Args:
        environment: of the terminal.
        now: with the terminal's time zone.
    """

    environment: Mapping[str, str]
    now: datetime


def wished(spec: JobSpec, wishes: Wishes, here: Here) -> JobSpec:
    """The job with what was typed in place of what it said before, checked.

    Raises:
        BadInput: with the option or the field, what is wrong and what to write.
    """
    resources = _with(spec.resources_per_worker, devices=wishes.devices, kinds=wishes.kinds)
    run_policy = _with(spec.run_policy, job_max_retry_count=wishes.retries)
    deadline = None if wishes.deadline is None else read_future_time("--deadline", wishes.deadline, here.now)
    return check_job_spec(
        _with(
            spec,
            name=wishes.name,
            team=wishes.team,
            queue=wishes.queue,
            priority_class=wishes.priority,
            spot=wishes.spot,
            borrow=wishes.borrow,
            deadline=deadline,
            budget=wishes.budget,
            env=spec.env | environment_of(wishes.env, here.environment) if wishes.env else None,
            resources_per_worker=resources,
            elastic_policy=_policy(spec.elastic_policy, wishes.workers),
            run_policy=run_policy,
            training=_training(spec.training, wishes),
        )
    )


def notes(spec: JobSpec, teams: Iterable[Team], now: datetime) -> tuple[str, ...]:
    """What is allowed, and may all the same not be what was meant.

    Args:
        spec: as it was taken.
        teams: that are declared, as far as the token may see.
        now: with the terminal's time zone.
    """
    return tuple(filter(None, (warn_undeclared_team(spec.team, teams), late(spec.deadline, now))))


def late(deadline: datetime | None, now: datetime) -> str:
    """What it means that a deadline has passed; empty: it has not."""
    if deadline is None or deadline > now:
        return ""
    local = deadline.astimezone(now.tzinfo)
    return f"its deadline, {local:%Y-%m-%d %H:%M}, has passed: it grows before others of its priority"


def limits_text(low: int, high: int) -> str:
    """``1 to 4 workers``."""
    return f"{high} worker{'s' * (high > 1)}" if low == high else f"{low} to {high} workers"


def environment_of(wishes: tuple[str, ...], own: Mapping[str, str]) -> dict[str, str]:
    """Variables that were named: ``NAME=VALUE``, or ``NAME`` for the value that it has here.

    Raises:
        BadInput: it has none here.
    """
    found = {}
    for wish in wishes:
        name, equals, value = wish.partition("=")
        if not equals and name not in own:
            raise BadInput(f"--env {name}: there is no such variable here", do=f"write --env {name}=VALUE")
        found[name] = value if equals else own[name]
    return found


def _policy(policy: ElasticPolicy, workers: str | None) -> ElasticPolicy:
    if workers is None:
        return policy
    low, high = parse_worker_range(workers, None, 1)
    return msgspec.structs.replace(policy, min_replicas=low, max_replicas=high)


def _training(training: JobTraining, wishes: Wishes) -> JobTraining:
    copies = wishes.copies
    if copies is not None and copies != "all" and not copies.isdecimal():
        raise BadInput(f"--copies {copies!r} is neither 'all' nor a number", do="write all, or 2")
    return _with(
        training,
        checkpoints=_checkpoints(training.checkpoints, wishes),
        seed=wishes.seed,
        threads=wishes.threads,
        virtual_ranks=wishes.virtual_ranks,
        convergence=wishes.convergence,
        copies=int(copies) if copies is not None and copies.isdecimal() else copies,
    )


def _checkpoints(keeping: JobCheckpoints, wishes: Wishes) -> JobCheckpoints:
    return _with(
        keeping,
        every=wishes.checkpoint_every,
        at=None if wishes.checkpoint_at is None else moments(wishes.checkpoint_at),
        url=wishes.checkpoint_dir,
        keep_last=wishes.keep_last,
        keep_every=wishes.keep_every,
        keep_best=wishes.keep_best,
    )


def _with(value: S, **changes: object) -> S:
    """A struct with those of the changes that are there."""
    some = {name: one for name, one in changes.items() if one is not None and one is not getattr(value, name)}
    # The same value where nothing changes: what is its default is not written out.
    return msgspec.structs.replace(value, **some) if some else value
