"""The history of the cluster: events, decisions, the audit log and usage. No row is ever changed."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row, and_, case, func, insert, or_, select

from elastane.cluster.controller.jobs.accounts import close_intervals
from elastane.cluster.controller.jobs.egress_account import list_egress
from elastane.cluster.controller.store import rows
from elastane.cluster.controller.store.columns import JsonColumn, encode_json, is_moment
from elastane.cluster.controller.store.tables import audit, decisions, egress, events, jobs, usage
from elastane.cluster.nouns.history import AuditLine, Event
from elastane.cluster.nouns.plans import Decision
from elastane.cluster.nouns.usage import BYTES_PER_GB, UsageRow
from elastane.common.bodies import Page, cut_page
from elastane.common.safe_text import LONGEST_TEXT, make_storable
from elastane.common.untrusted_data import Malformed

LONGEST_MESSAGE = 4000
"""In characters. A message may contain the reason of a job's end, or an operator's change."""
Detail: TypeAlias = dict[str, str | int | float | bool | None]
_decode_detail_column = JsonColumn[Detail](Detail)
_decode_decision = JsonColumn[Decision](Decision)
_decode_sentences = JsonColumn[tuple[str, ...]](tuple[str, ...])
LONGEST_NAME = 300
"""Limit in characters of a user, a target or a team. Names are shorter; this bounds unchecked ones too."""
By: TypeAlias = Literal["team", "user", "job", "pool"]


def append_event(
    tx: Connection,
    kind: str,
    message: str,
    now_s: float,
    *,
    team: str = "",
    job: str = "",
    detail: Detail | None = None,
) -> None:
    """Append an event. Its ``kind`` is a noun and a participle: ``job.submitted``, ``node.drained``."""
    tx.execute(
        insert(events).values(
            time_s=now_s,
            kind=kind,
            team=team or None,
            job=job or None,
            message=make_storable(message, LONGEST_MESSAGE),
            detail=encode_json(detail or {}),
        )
    )


def list_events_after(
    tx: Connection,
    number: int,
    limit: int,
    *,
    teams: tuple[str, ...] | None = None,
    public: bool = True,
    job: str = "",
) -> tuple[Event, ...]:
    """Return events with a higher number, oldest first: of teams (None: all), of none, or of one job."""
    query = select(events).where(events.c.id > number).order_by(events.c.id).limit(limit)
    if job:
        query = query.where(events.c.job == job)
    if teams is not None:
        mine = events.c.team.in_(teams)
        query = query.where(or_(mine, events.c.team.is_(None)) if public else mine)
    return tuple(
        Event(
            id=row.id,
            time_s=row.time_s if is_moment(row.time_s) else 0.0,
            kind=row.kind,
            team=row.team or "",
            job=row.job or "",
            message=row.message,
            detail=_decode_detail(row.detail),
        )
        for row in tx.execute(query)
    )


def _decode_detail(text: object) -> Detail:
    """Decode the details of an event. Unreadable details must not hide the events after them."""
    try:
        return _decode_detail_column(text)
    except Malformed as error:
        return {"unreadable": str(error)}


def find_newest_event(tx: Connection) -> int:
    """Return the number of the last event; 0: no event has happened."""
    found: int = tx.execute(select(func.coalesce(func.max(events.c.id), 0))).scalar_one()
    return found


class StoredDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a job.

    Args:
        id: grows.
        decision: None: it cannot be read.
    """

    id: int
    time_s: float
    decision: Decision | None
    sentences: tuple[str, ...] = ()
    unreadable: str = ""


def insert_decision(
    tx: Connection, decision: Decision, sentences: tuple[str, ...], number: int, now_s: float
) -> None:
    """Store a decision, as a part of the change with this number."""
    tx.execute(
        insert(decisions).values(
            time_s=now_s,
            change=number,
            job=decision.job,
            decision=encode_json(decision),
            sentences=encode_json(sentences),
        )
    )


def list_decisions(tx: Connection, job: str, limit: int) -> tuple[StoredDecision, ...]:
    """Return the newest decisions about a job, newest first."""
    query = select(decisions).where(decisions.c.job == job).order_by(decisions.c.id.desc()).limit(limit)
    return tuple(_read_decision(row) for row in tx.execute(query))


def _read_decision(row: Row[Any]) -> StoredDecision:
    time_s = row.time_s if is_moment(row.time_s) else 0.0
    try:
        decision, sentences = _decode_decision(row.decision), _decode_sentences(row.sentences)
    except Malformed as error:
        return StoredDecision(id=row.id, time_s=time_s, decision=None, unreadable=str(error))
    return StoredDecision(id=row.id, time_s=time_s, decision=decision, sentences=sentences)


def append_audit_line(
    tx: Connection,
    *,
    token: str,
    user: str,
    action: str,
    target: str,
    team: str,
    allowed: bool,
    detail: str,
    now_s: float,
    times: int = 1,
    longest: int = LONGEST_TEXT,
) -> None:
    """Append a line, in the transaction of the change that it describes.

    Args:
        token: id of the token.
        team: owner of the line; empty: the cluster.
        allowed: the action was done.
        times: number of refusals that this line covers.
        longest: characters of the detail to keep.
    """
    tx.execute(
        insert(audit).values(
            time_s=now_s,
            token=token,
            user=make_storable(user, LONGEST_NAME),
            action=action,
            target=make_storable(target, LONGEST_NAME),
            team=make_storable(team, LONGEST_NAME),
            allowed=int(allowed),
            detail=make_storable(detail, longest),
            times=times,
        )
    )


def list_audit_page(
    tx: Connection, *, teams: tuple[str, ...] | None, of_none: bool = True, before: int | None, limit: int
) -> Page[AuditLine]:
    """Return lines of the audit log before an id, newest first: of teams, or of all and perhaps none."""
    query = select(audit).order_by(audit.c.id.desc()).limit(limit + 1)
    if teams is not None:
        query = query.where(audit.c.team.in_(teams))
    elif not of_none:
        query = query.where(audit.c.team != "")
    if before is not None:
        query = query.where(audit.c.id < before)
    found = [_decode_line(row) for row in tx.execute(query)]
    return cut_page(found, limit, lambda item: item.id)


def _decode_line(row: Row[Any]) -> AuditLine:
    columns = {name: getattr(row, name) for name in AuditLine.__struct_fields__}
    return AuditLine(**columns | {"allowed": bool(row.allowed)})


def count_audit_lines(
    tx: Connection, actions: Iterable[str], from_s: float, until_s: float, teams: tuple[str, ...] | None
) -> int:
    """Return the number of done actions of these kinds between two times, in teams; None: all."""
    query = select(func.count()).where(
        audit.c.action.in_(sorted(actions)),
        audit.c.allowed == 1,
        audit.c.time_s >= from_s,
        audit.c.time_s <= until_s,
    )
    if teams is not None:
        query = query.where(audit.c.team.in_(teams))
    found: int = tx.execute(query).scalar_one()
    return found


def find_first_event_s(tx: Connection) -> float | None:
    """Return the time of the first event, in seconds since 1970; None: no event has happened."""
    time_s = tx.execute(select(events.c.time_s).order_by(events.c.id).limit(1)).scalar_one_or_none()
    return time_s if is_moment(time_s) else None


def sum_usage(
    tx: Connection, by: tuple[By, ...], from_s: float, until_s: float, teams: tuple[str, ...] | None
) -> tuple[UsageRow, ...]:
    """Return the usage of teams (None: all) between two past times by columns, with that of running jobs."""
    sums: dict[tuple[str, ...], dict[str, float]] = {}

    def add(key: tuple[str, ...], **amounts: float) -> None:
        row = sums.setdefault(key, {})
        for name, amount in amounts.items():
            row[name] = row.get(name, 0.0) + amount

    span = tx, by, from_s, until_s, teams
    for key, terms, device_s, cost in (*_sum_closed(*span), *_sum_open(*span)):
        add(key, **{f"{terms}_device_s": device_s, "cost": cost})
    for key, sent_bytes, cost in (*_sum_closed_egress(*span), *_sum_open_egress(*span)):
        add(key, egress_bytes=sent_bytes, egress_cost=cost, cost=cost)
    return tuple(_build_row(dict(zip(by, key, strict=True)), sums[key]) for key in sorted(sums))


def _build_row(key: dict[Any, Any], sums: dict[str, Any]) -> UsageRow:
    return UsageRow(**key, **sums)


def _sum_closed(
    tx: Connection, by: tuple[By, ...], from_s: float, until_s: float, teams: tuple[str, ...] | None
) -> Iterable[tuple[tuple[str, ...], str, float, float]]:
    begin = case((usage.c.from_s < from_s, from_s), else_=usage.c.from_s)
    end = case((usage.c.until_s > until_s, until_s), else_=usage.c.until_s)
    device_s = usage.c.devices * (end - begin)
    groups = [usage.c[name] for name in by]
    query = (
        select(*groups, usage.c.terms, func.sum(device_s), func.sum(device_s * usage.c.price / 3600))
        .where(usage.c.until_s > from_s, usage.c.from_s < until_s)
        .group_by(*groups, usage.c.terms)
    )
    if teams is not None:
        query = query.where(usage.c.team.in_(teams))
    for *key, terms, seconds, cost in tx.execute(query):
        yield tuple(key), terms, seconds, cost


def _sum_open(
    tx: Connection, by: tuple[By, ...], from_s: float, until_s: float, teams: tuple[str, ...] | None
) -> Iterable[tuple[tuple[str, ...], str, float, float]]:
    query = select(jobs.c.name, jobs.c.team, jobs.c.user, jobs.c.using, jobs.c.using_since_s)
    query = query.where(jobs.c.ended_s.is_(None), jobs.c.using != "[]")
    if teams is not None:
        query = query.where(jobs.c.team.in_(teams))
    found: Iterable[Any] = tx.execute(query)
    for row in found:
        since_s = row.using_since_s if is_moment(row.using_since_s) else None
        for interval in close_intervals(rows.decode_uses(row.using), since_s, until_s):
            device_s, cost = interval.clip(from_s, until_s)
            if device_s:
                columns = {"job": row.name, "team": row.team, "user": row.user, "pool": interval.pool}
                yield tuple(columns[name] for name in by), interval.terms, device_s, cost


def _sum_closed_egress(
    tx: Connection, by: tuple[By, ...], from_s: float, until_s: float, teams: tuple[str, ...] | None
) -> Iterable[tuple[tuple[str, ...], float, float]]:
    rows_of, lasted_s = egress.c, egress.c.until_s - egress.c.from_s
    begin = case((rows_of.from_s < from_s, from_s), else_=rows_of.from_s)
    end = case((rows_of.until_s > until_s, until_s), else_=rows_of.until_s)
    sent_bytes = rows_of.sent_bytes * case((lasted_s > 0, (end - begin) / lasted_s), else_=1.0)
    groups = [rows_of.source + ">" + rows_of.target if name == "pool" else rows_of[name] for name in by]
    query = (
        select(*groups, func.sum(sent_bytes), func.sum(sent_bytes * rows_of.price / BYTES_PER_GB))
        .where(
            or_(
                and_(rows_of.until_s > from_s, rows_of.from_s < until_s),
                and_(lasted_s <= 0, rows_of.from_s > from_s, rows_of.from_s <= until_s),
            )
        )
        .group_by(*groups)
    )
    if teams is not None:
        query = query.where(rows_of.team.in_(teams))
    for *key, some, cost in tx.execute(query):
        yield tuple(key), float(some), cost


def _sum_open_egress(
    tx: Connection, by: tuple[By, ...], from_s: float, until_s: float, teams: tuple[str, ...] | None
) -> Iterable[tuple[tuple[str, ...], float, float]]:
    query = select(jobs.c.name, jobs.c.team, jobs.c.user, jobs.c.egress)
    query = query.where(jobs.c.ended_s.is_(None), jobs.c.egress != "{}")
    if teams is not None:
        query = query.where(jobs.c.team.in_(teams))
    for row in tx.execute(query):
        account = rows.decode_egress(row.egress)
        for interval in () if account is None else list_egress(account):
            part = interval.clip(from_s, until_s)
            if part:
                pool = f"{interval.source}>{interval.target}"
                columns = {"job": row.name, "team": row.team, "user": row.user, "pool": pool}
                sent_bytes = interval.sent_bytes * part
                cost = sent_bytes * interval.price / BYTES_PER_GB
                yield tuple(columns[name] for name in by), sent_bytes, cost
