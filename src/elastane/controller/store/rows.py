"""Rows as frozen values, and back. Pure."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Row

from elastane.api.cluster import Draining, Holding, JobState
from elastane.api.jobs import JobSpec
from elastane.api.plans import Cause
from elastane.api.wire import Explanation, Grant, Job, JobSummary, Observed, Terms, Use, Wanted
from elastane.controller.noting import how_it_ended
from elastane.controller.observing import retried_at_s
from elastane.scheduler.goodput import comparable

# The same specs are read again at every turn, and are values.
_spec_in = lru_cache(maxsize=20_000)(msgspec.json.Decoder(JobSpec).decode)
_grant = msgspec.json.Decoder(Grant)
_observed = msgspec.json.Decoder(Observed)
_explanation = msgspec.json.Decoder(Explanation)
_uses = msgspec.json.Decoder(tuple[Use, ...])


def text_of(value: object) -> str:
    """A value as JSON, equal for equal values."""
    return msgspec.json.encode(value, order="deterministic").decode()


def summary_of(row: Row[Any]) -> JobSummary:
    return JobSummary(**_summary(row, _spec_in(row.spec), _observed.decode(row.observed)))


def _explained(row: Row[Any]) -> Explanation:
    """Of a job that has ended, how: what was last planned for it has nothing to say any more."""
    if row.ended_s is None:
        return _explanation.decode(row.explained)
    ending = how_it_ended(row.state, row.why.removesuffix("."))
    return Explanation(sentences=(f"It {ending}.",), decided_s=row.ended_s)


def job_of(row: Row[Any]) -> Job:
    spec, observed = _spec_in(row.spec), _observed.decode(row.observed)
    return Job(
        **_summary(row, spec, observed),
        version=row.version,
        spec=spec,
        grant=_grant.decode(row.granted),
        observed=observed,
        explained=_explained(row),
        run_dir=row.run_dir,
        lives=row.lives,
        crashes=row.crashes,
        resizes=row.resizes,
        preemptions=row.preemptions,
        resized_s=_moment(row.resized_s),
        spent=float(row.spent),
        spending_per_h=cost(uses_of(row), 3600.0),
        spending_since_s=float(row.using_since_s),
        active_s=float(row.active_s),
        active_since_s=_moment(row.active_since_s),
        why=row.why,
        traceback=row.traceback,
    )


def _moment(seconds: float | None) -> float | None:
    # What SQLite has just written it returns as an integer where it can, what it has read as a float.
    return None if seconds is None else float(seconds)


def _summary(row: Row[Any], spec: JobSpec, observed: Observed) -> dict[str, Any]:
    low, high = spec.elastic_policy.limits
    return {
        "number": row.number,
        "name": row.name,
        "team": row.team,
        "user": row.user,
        "queue": row.queue,
        "priority_class": row.priority_class,
        "state": row.state,
        "wanted": row.wanted,
        "workers": row.workers,
        "min_workers": low,
        "max_workers": high,
        "step": row.step,
        "steps": observed.steps,
        "loss": observed.loss,
        "samples_per_s": observed.samples_per_s if row.state == "running" else 0.0,
        "submitted_s": float(row.submitted_s),
        "started_s": _moment(row.started_s),
        "ended_s": _moment(row.ended_s),
        "retry_at_s": float(row.retry_at_s),
    }


ENDS: dict[Wanted, Cause] = {"cancel": "cancelled", "finish": "target", "fail": "time"}
"""Why the scheduler should give a job nothing any more."""


def wanted_by(spec: JobSpec) -> Wanted:
    """What a job's spec says, unless the job is to end."""
    return "pause" if spec.run_policy.suspend else "run"


def of_spec(spec: JobSpec) -> dict[str, Any]:
    """The columns that follow from a spec."""
    return {
        "name": spec.name,
        "team": spec.team,
        "queue": spec.queue,
        "priority_class": spec.priority_class,
        "spec": text_of(spec),
    }


def pools_in(granted: str, observed: str) -> frozenset[str]:
    """Where a job was granted workers, or was seen to have some."""
    return frozenset(_grant.decode(granted).workers) | frozenset(_observed.decode(observed).held)


def state_of(row: Row[Any], now_s: float) -> JobState:
    """A job as the scheduler sees it.

    A job uses the larger of its grant and what was seen: workers beyond the grant drain, and hold their
    devices until they have been seen gone.
    """
    grant, observed = _grant.decode(row.granted), _observed.decode(row.observed)
    holds, draining, successors = [], [], 0
    for pool in sorted(grant.workers.keys() | observed.held.keys()):
        granted = grant.workers.get(pool, 0)
        held = observed.held.get(pool)
        seen, leaving, absent, lost = (
            (held.workers, held.leaving, held.absent, held.lost) if held else (0, 0, 0, 0)
        )
        beyond = max(0, seen - granted)
        if beyond:
            # Those on nodes that go away are asked to leave first.
            draining.append(
                Draining(
                    pool=pool,
                    workers=beyond,
                    deadline_s=grant.drain_until_s,
                    leaving=min(beyond, leaving),
                )
            )
        missing = max(0, granted - (seen - absent))
        gone = min(missing, lost)
        failed = gone if observed.faulty_since_s is not None else 0
        successors += gone - failed
        if granted:
            holds.append(
                Holding(
                    pool=pool,
                    workers=granted,
                    leaving=min(granted, max(0, leaving - beyond)),
                    starting=missing - failed,
                    failed=failed,
                )
            )
    return JobState(
        number=row.number,
        spec=_spec_in(row.spec),
        submitted_s=row.submitted_s,
        holds=tuple(holds),
        draining=tuple(draining),
        started_s=row.admitted_s,
        resized_s=row.resized_s,
        setbacks=row.setbacks,
        promised=row.promised,
        starting_since_s=observed.starting_since_s,
        faulty_since_s=observed.faulty_since_s,
        successors=successors,
        retry_at_s=float(retried_at_s(row.retry_at_s, now_s)),
        speeds=comparable(observed.speeds, observed.brief),
        resize_s=observed.resize_s,
        unsaved_s=observed.unsaved_s,
        remaining=observed.remaining,
        spent=row.spent + cost(_uses.decode(row.using), now_s - row.using_since_s),
        ends=ENDS.get(row.wanted),
    )


def explanation_of(text: str) -> Explanation:
    return _explanation.decode(text)


def uses_of(row: Row[Any]) -> tuple[Use, ...]:
    return uses_in(row.using)


def uses_in(text: str) -> tuple[Use, ...]:
    return _uses.decode(text)


def cost(uses: tuple[Use, ...], seconds: float) -> float:
    """Of these devices for so long, in the currency of their prices, which are by the hour."""
    return sum(use.devices * use.price for use in uses) * max(0.0, seconds) / 3600


def intervals(row: Row[Any], until_s: float) -> list[dict[str, Any]]:
    """The rows of usage that end now, because what a job uses changes."""
    if until_s <= row.using_since_s:
        return []
    return [
        {
            "job": row.name,
            "team": row.team,
            "user": row.user,
            "pool": use.pool,
            "terms": use.terms,
            "devices": use.devices,
            "price": use.price,
            "from_s": row.using_since_s,
            "until_s": until_s,
        }
        for use in uses_of(row)
        if use.devices
    ]


def clipped(row: Mapping[str, Any], from_s: float, until_s: float) -> tuple[Terms, float, float]:
    """Terms, device-seconds and cost of that part of an interval of usage that lies between two moments."""
    seconds = max(0.0, min(row["until_s"], until_s) - max(row["from_s"], from_s))
    device_s = row["devices"] * seconds
    return row["terms"], device_s, device_s * row["price"] / 3600
