"""Decoding and encoding of the rows of jobs.

An unreadable row becomes a value too, marked as unreadable, so that the other rows can still be read.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, get_args

import msgspec
from sqlalchemy import Row

from elastane.cluster.controller.jobs.egress_account import EgressAccount
from elastane.cluster.controller.jobs.stored_job import UNKNOWN_SPEC, SizeReason, StoredJob
from elastane.cluster.controller.store.columns import (
    JsonColumn,
    encode_json,
    is_amount,
    is_integer,
    is_moment,
)
from elastane.cluster.nouns.job_checks import check_numbers
from elastane.cluster.nouns.job_records import Grant, HeldWorkers, ObservedJob, State, Wanted
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.usage import Use
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed

SHOWN = 60
"""Characters of a wrong value to show."""

# Every cycle reads the same specs again, and they are immutable.
_decode_spec = lru_cache(maxsize=20_000)(JsonColumn[JobSpec](JobSpec, check_numbers))
_decode_grant = JsonColumn[Grant](Grant)
_decode_observed = JsonColumn[ObservedJob](ObservedJob)
_decode_reason = JsonColumn[SizeReason](SizeReason)
_decode_egress = JsonColumn[EgressAccount](EgressAccount)
_decode_uses = JsonColumn[tuple[Use, ...]](tuple[Use, ...])

STATES, WISHES = frozenset(get_args(State)), frozenset(get_args(Wanted))
TIMES = ("submitted_s", "retry_at_s", "active_s")
OPTIONAL_TIMES = ("started_s", "ended_s", "resized_s", "admitted_s", "active_since_s", "forget_at_s")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_optional_moment(value: object) -> bool:
    return value is None or is_moment(value)


PLAIN: dict[str, tuple[Callable[[object], bool], object]] = {
    **dict.fromkeys(("name", "team", "user", "queue", "priority_class"), (_is_text, "")),
    **dict.fromkeys(("run_dir", "why", "traceback"), (_is_text, "")),
    # A job with an unreadable state may hold devices.
    "state": (STATES.__contains__, "running"),
    "wanted": (WISHES.__contains__, "run"),
    **dict.fromkeys(("workers", "step", "version", "lives", "crashes", "resizes"), (is_integer, 0)),
    **dict.fromkeys(("preemptions", "setbacks", "promised"), (is_integer, 0)),
    **dict.fromkeys(TIMES, (is_moment, 0.0)),
    **dict.fromkeys(OPTIONAL_TIMES, (_is_optional_moment, None)),
    # The begin of an account is never guessed.
    "using_since_s": (is_moment, None),
    "spent": (is_amount, 0.0),
}
"""Columns without JSON: the check of a value, and the replacement of a value that fails it."""
FLOATS = frozenset({*TIMES, *OPTIONAL_TIMES, "using_since_s", "spent"})
FIELDS = {"lives": "attempts"}
"""Columns whose field of a stored job has another name."""
JSON = {
    "spec": "spec",
    "grant": "granted",
    "observed": "observed",
    "reason": "explained",
    "uses": "using",
    "egress": "egress",
}
"""Fields of a stored job whose columns hold JSON."""
COLUMNS = {**{FIELDS.get(name, name): name for name in PLAIN}, **JSON}
"""The column of each field of a stored job, but the number."""


def decode_job(row: Row[Any]) -> StoredJob:
    """Decode a row of jobs. If the query has not read a column, its field keeps its default."""
    columns: dict[str, Any] = dict(row._mapping)
    wrong: list[str] = []
    guessed: list[str] = []
    fields = _read_plain(columns, wrong)
    spec, grant, observed = UNKNOWN_SPEC, Grant(), ObservedJob()
    try:
        spec = _read_spec(columns)
    except Malformed as error:
        wrong.append(f"spec: {error}")
        spec = msgspec.structs.replace(UNKNOWN_SPEC, name=fields["name"], team=fields["team"])
    if "granted" in columns:
        try:
            grant = _decode_grant(columns["granted"])
        except Malformed as error:
            wrong.append(f"granted: {error}")
    try:
        observed = _decode_observed(columns["observed"])
    except Malformed as error:
        try:
            # The next observation replaces it. Until then, the job counts as holding what it pays for.
            observed = _guess_observed(columns, spec)
            guessed.append(f"observed: {error}")
        except Malformed:
            wrong.append(f"observed: {error}")
    if "explained" in columns:
        fields["reason"] = decode_reason(columns["explained"])
    if "using" in columns:
        fields["uses"] = decode_uses(columns["using"])
    if "egress" in columns:
        fields["egress"] = decode_egress(columns["egress"])
    return StoredJob(
        **fields,
        number=columns["number"],
        spec=spec,
        grant=grant,
        observed=observed,
        unreadable="; ".join(wrong),
        guessed="; ".join(guessed),
    )


def _read_plain(columns: Mapping[str, Any], wrong: list[str]) -> dict[str, Any]:
    """Return the fields of columns without JSON, and add those that cannot be read to ``wrong``."""
    fields: dict[str, Any] = {}
    for column, stored in columns.items():
        if column not in PLAIN:
            continue
        is_possible, replacement = PLAIN[column]
        value = stored
        if not is_possible(stored):
            value = replacement
            wrong.append(f"{column}: {escape_line(repr(stored), SHOWN)} is not a possible value")
        # SQLite may return a float as an integer.
        fields[FIELDS.get(column, column)] = float(value) if column in FLOATS and value is not None else value
    return fields


def _read_spec(columns: Mapping[str, Any]) -> JobSpec:
    text = columns["spec"]
    # The cache looks a value up before the decoder checks its type.
    if not isinstance(text, str):
        raise Malformed("it is not text")
    spec = _decode_spec(text)
    if spec.name != columns["name"] or spec.team != columns["team"]:
        raise Malformed("it belongs to another job")
    return spec


def _guess_observed(columns: Mapping[str, Any], spec: JobSpec) -> ObservedJob:
    """Return the workers that a job may hold by its open accounts."""
    if "using" not in columns:
        return ObservedJob()
    devices = spec.worker_devices
    held: dict[str, int] = {}
    for use in _decode_uses(columns["using"]):
        held[use.pool] = held.get(use.pool, 0) + -(-use.devices // devices)
    return ObservedJob(held={pool: HeldWorkers(workers=workers) for pool, workers in held.items()})


def decode_reason(text: object) -> SizeReason:
    """Return the reason of a job's size; the next plan replaces one that cannot be read."""
    try:
        return _decode_reason(text)
    except Malformed as error:
        return SizeReason(sentences=(f"Its explanation cannot be read: {error}.",))


def decode_uses(text: object) -> tuple[Use, ...] | None:
    """Return the devices that a job uses; None: they cannot be read."""
    try:
        return _decode_uses(text)
    except Malformed:
        return None


def decode_egress(text: object) -> EgressAccount | None:
    """Return the account of the bytes that a job sends between sites; None: it cannot be read."""
    try:
        return _decode_egress(text)
    except Malformed:
        return None


def encode_job(job: StoredJob) -> dict[str, Any]:
    """Return the values of all columns but the number."""
    return _encode(job, COLUMNS)


def encode_changes(before: StoredJob, after: StoredJob, always: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the values of the columns that differ, and of those fields that are always written."""
    changed = {
        field: column
        for field, column in COLUMNS.items()
        if field in always or getattr(before, field) != getattr(after, field)
    }
    return _encode(after, changed)


def _encode(job: StoredJob, columns: Mapping[str, str]) -> dict[str, Any]:
    values = {
        column: encode_json(getattr(job, field)) if field in JSON else getattr(job, field)
        for field, column in columns.items()
    }
    if "spec" in values:
        values["spec_bytes"] = len(values["spec"].encode())
        values["code"] = job.spec.code
    return values


def explain_unstorable(observed: ObservedJob) -> str:
    """Return why an observation could not be read back; empty: it could."""
    try:
        _decode_observed(encode_json(observed))
    except (ValueError, TypeError) as error:
        return escape_line(str(error))
    return ""


def may_hold_in(pool: str, granted: object, observed: object) -> bool:
    """Return whether a job has or had workers in a pool, or its record cannot be read."""
    try:
        return pool in _decode_grant(granted).workers or pool in _decode_observed(observed).held
    except Malformed:
        return True
