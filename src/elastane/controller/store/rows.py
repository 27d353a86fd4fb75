"""Rows as frozen values, and back. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Row

from elastane.api.job_records import ENDED, Explanation, Wanted
from elastane.api.jobs import JobSpec
from elastane.api.plans import Cause
from elastane.api.rest import Job, JobSummary
from elastane.api.usage import Terms, Use
from elastane.controller.noting import how_it_ended
from elastane.controller.store.columns import is_moment, text_of
from elastane.controller.store.records import UNKNOWN, Record, explanation_of, record_of, uses_of


def summary_of(row: Row[Any]) -> JobSummary:
    return JobSummary(**_summary(row, record_of(row)))


def job_of(row: Row[Any]) -> Job:
    record = record_of(row)
    plain, uses = record.plain, uses_of(row) or ()
    return Job(
        **_summary(row, record),
        version=plain["version"],
        spec=record.spec
        if record.spec is not UNKNOWN
        else msgspec.structs.replace(UNKNOWN, name=plain["name"], team=plain["team"]),
        grant=record.grant,
        observed=record.observed,
        explained=_explained(row, record),
        run_dir=plain["run_dir"],
        attempts=plain["lives"],
        crashes=plain["crashes"],
        resizes=plain["resizes"],
        preemptions=plain["preemptions"],
        resized_s=_moment(plain["resized_s"]),
        spent=float(plain["spent"]),
        spending_per_h=cost(uses, 3600.0),
        spending_since_s=float(plain["using_since_s"]),
        active_s=float(plain["active_s"]),
        active_since_s=_moment(plain["active_since_s"]),
        why=plain["why"],
        traceback=plain["traceback"],
    )


def _explained(row: Row[Any], record: Record) -> Explanation:
    """Of a job that has ended, how: what was last planned for it has nothing to say any more."""
    plain = record.plain
    if plain["ended_s"] is not None and plain["state"] in ENDED:
        ending = how_it_ended(plain["state"], plain["why"].removesuffix("."))
        return Explanation(sentences=(f"It {ending}.",), decided_s=plain["ended_s"])
    if record.unreadable:
        return Explanation(
            sentences=(
                f"Its record cannot be read: {record.unreadable}.",
                "It keeps the devices that it holds, and nothing is decided about it.",
                "It changes with `elastane cancel`, or once an operator has put back a backup of the store.",
            )
        )
    return explanation_of(row.explained)


def _moment(seconds: float | None) -> float | None:
    # What SQLite has just written it returns as an integer where it can, what it has read as a float.
    return None if seconds is None else float(seconds)


def _summary(row: Row[Any], record: Record) -> dict[str, Any]:
    plain, observed = record.plain, record.observed
    low, high = record.spec.elastic_policy.limits
    return {
        "number": row.number,
        "name": plain["name"],
        "team": plain["team"],
        "user": plain["user"],
        "queue": plain["queue"],
        "priority_class": plain["priority_class"],
        "state": plain["state"],
        "wanted": plain["wanted"],
        "workers": plain["workers"],
        "min_workers": low,
        "max_workers": high,
        "step": plain["step"],
        "steps": observed.steps,
        "loss": observed.loss,
        "samples_per_s": observed.samples_per_s if plain["state"] == "running" else 0.0,
        "submitted_s": float(plain["submitted_s"]),
        "started_s": _moment(plain["started_s"]),
        "ended_s": _moment(plain["ended_s"]),
        "retry_at_s": float(plain["retry_at_s"]),
        "unreadable": record.unreadable,
    }


ENDS: dict[Wanted, Cause] = {"cancel": "cancelled", "finish": "target", "fail": "time"}
"""Why the scheduler should give a job nothing any more."""


def wanted_by(spec: JobSpec) -> Wanted:
    """What a job's spec says, unless the job is to end."""
    return "pause" if spec.run_policy.suspend else "run"


def of_spec(spec: JobSpec) -> dict[str, Any]:
    """The columns that follow from a spec."""
    text = text_of(spec)
    return {
        "name": spec.name,
        "team": spec.team,
        "queue": spec.queue,
        "priority_class": spec.priority_class,
        "spec": text,
        "spec_bytes": len(text.encode()),
    }


def cost(uses: tuple[Use, ...], seconds: float) -> float:
    """Of these devices for so long, in the currency of their prices, which are by the hour."""
    return sum(use.devices * use.price for use in uses) * max(0.0, seconds) / 3600


def intervals(row: Row[Any], until_s: float) -> list[dict[str, Any]]:
    """The rows of usage that end now, because what a job uses changes."""
    if not is_moment(row.using_since_s) or until_s <= row.using_since_s:
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
        for use in uses_of(row) or ()
        if use.devices
    ]


def clipped(row: Mapping[str, Any], from_s: float, until_s: float) -> tuple[Terms, float, float]:
    """Terms, device-seconds and cost of that part of an interval of usage that lies between two moments."""
    seconds = max(0.0, min(row["until_s"], until_s) - max(row["from_s"], from_s))
    device_s = row["devices"] * seconds
    return row["terms"], device_s, device_s * row["price"] / 3600
