"""What the row of a job says, as far as it can be read. Pure.

A row that cannot be read is a value too, which says so: it must not keep anybody from reading the others.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from sqlalchemy import Row

from elastane.api.job_checks import check_numbers
from elastane.api.job_records import Explanation, Grant, HeldWorkers, ObservedJob, State, Wanted
from elastane.api.jobs import ElasticPolicy, JobSpec
from elastane.api.safe_text import escape_line
from elastane.api.untrusted_data import Malformed
from elastane.api.usage import Use
from elastane.controller.store.columns import JsonColumn, is_amount, is_integer, is_moment, text_of

SHOWN = 60
"""Characters of a value that is wrong."""

# The same specs are read again at every turn, and are values.
_spec_in = lru_cache(maxsize=20_000)(JsonColumn[JobSpec](JobSpec, check_numbers))
_grant_in = JsonColumn[Grant](Grant)
_observed_in = JsonColumn[ObservedJob](ObservedJob)
_explanation_in = JsonColumn[Explanation](Explanation)
_uses_in = JsonColumn[tuple[Use, ...]](tuple[Use, ...])

STATES, WISHES = frozenset(get_args(State)), frozenset(get_args(Wanted))
UNKNOWN = JobSpec(name="", team="", elastic_policy=ElasticPolicy(min_replicas=0, max_replicas=0))
"""In place of a spec that cannot be read."""
PLAIN: dict[str, tuple[Callable[[object], bool], object]] = {
    **dict.fromkeys(("name", "team", "user", "queue", "priority_class"), (lambda v: isinstance(v, str), "")),
    **dict.fromkeys(("run_dir", "why", "traceback"), (lambda v: isinstance(v, str), "")),
    # Nobody knows that it holds nothing.
    "state": (STATES.__contains__, "running"),
    "wanted": (WISHES.__contains__, "run"),
    **dict.fromkeys(("workers", "step", "version", "lives", "crashes", "resizes"), (is_integer, 0)),
    **dict.fromkeys(("preemptions", "setbacks", "promised"), (is_integer, 0)),
    **dict.fromkeys(("submitted_s", "retry_at_s", "using_since_s", "active_s"), (is_moment, 0.0)),
    **dict.fromkeys(
        ("started_s", "ended_s", "resized_s", "admitted_s", "active_since_s", "forget_at_s"),
        (lambda v: v is None or is_moment(v), None),
    ),
    "spent": (is_amount, 0.0),
}
"""Columns without JSON: whether a value can be one of theirs, and what stands for one that cannot."""


class Record(NamedTuple):
    """What a row says, as far as it can be read.

    Args:
        spec: `UNKNOWN` if it cannot be read.
        grant: nothing, likewise.
        observed: likewise; if only that cannot be read, what the rest of the row says.
        plain: the columns without JSON.
        unreadable: what cannot be read, so that nothing can be decided about the job; empty: all of it can.
        guessed: what cannot be read and is made again by the next turns; empty: nothing.
    """

    spec: JobSpec
    grant: Grant
    observed: ObservedJob
    plain: Mapping[str, Any]
    unreadable: str
    guessed: str


def record_of(row: Row[Any]) -> Record:
    """Read a row of jobs, of which some columns may be missing."""
    columns: dict[str, Any] = dict(row._mapping)  # noqa: SLF001 - its public name for a mapping
    wrong: list[str] = []
    guessed: list[str] = []
    plain = {name: value for name, value in columns.items() if name in PLAIN}
    for name, value in plain.items():
        possible, instead = PLAIN[name]
        if not possible(value):
            wrong.append(f"{name}: {escape_line(repr(value), SHOWN)} is not a possible value")
            plain[name] = instead
    spec, grant, observed = UNKNOWN, Grant(), ObservedJob()
    try:
        spec = _own_spec(columns)
    except Malformed as error:
        wrong.append(f"spec: {error}")
    if "granted" in columns:
        try:
            grant = _grant_in(columns["granted"])
        except Malformed as error:
            wrong.append(f"granted: {error}")
    try:
        observed = _observed_in(columns["observed"])
    except Malformed as error:
        try:
            # Made again at the next look. Until then it holds what it is charged for.
            observed = _charged(columns, spec)
            guessed.append(f"observed: {error}")
        except Malformed:
            wrong.append(f"observed: {error}")
    return Record(spec, grant, observed, plain, "; ".join(wrong), "; ".join(guessed))


def _own_spec(columns: Mapping[str, Any]) -> JobSpec:
    text = columns["spec"]
    # A cache looks a value up before anybody has looked at its type.
    if not isinstance(text, str):
        raise Malformed("it is not text")
    spec = _spec_in(text)
    if spec.name != columns["name"] or spec.team != columns["team"]:
        raise Malformed("it is that of another job")
    return spec


def _charged(columns: Mapping[str, Any], spec: JobSpec) -> ObservedJob:
    """What a job may hold by its open accounts."""
    if "using" not in columns:
        return ObservedJob()
    devices = spec.resources_per_worker.devices
    held: dict[str, int] = {}
    for use in _uses_in(columns["using"]):
        held[use.pool] = held.get(use.pool, 0) + -(-use.devices // devices)
    return ObservedJob(held={pool: HeldWorkers(workers=workers) for pool, workers in held.items()})


def explanation_of(text: object) -> Explanation:
    """Return why a job has its size; the next plan writes anew what cannot be read."""
    try:
        return _explanation_in(text)
    except Malformed as error:
        return Explanation(sentences=(f"Its explanation cannot be read: {error}.",))


def uses_of(row: Any) -> tuple[Use, ...] | None:  # noqa: ANN401 - a row of any columns
    """Return what a job uses; None: it cannot be read."""
    try:
        return _uses_in(row.using)
    except Malformed:
        return None


def not_storable(observed: ObservedJob) -> str:
    """Return why what an engine saw could not be read back; empty: it could."""
    try:
        _observed_in(text_of(observed))
    except (ValueError, TypeError) as error:
        return escape_line(str(error))
    return ""


def may_hold_in(pool: str, granted: object, observed: object) -> bool:
    """Whether a job was granted workers in a pool, or was seen to have some; also if nobody can tell."""
    try:
        return pool in _grant_in(granted).workers or pool in _observed_in(observed).held
    except Malformed:
        return True
