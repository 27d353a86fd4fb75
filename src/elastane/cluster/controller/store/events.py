"""The events of a cluster."""

from typing import TypeAlias

from sqlalchemy import Connection, func, insert, or_, select

from elastane.cluster.controller.store.columns import JsonColumn, encode_json, is_moment
from elastane.cluster.controller.store.tables import events
from elastane.cluster.nouns.history import Event
from elastane.common.safe_text import make_storable
from elastane.common.untrusted_data import Malformed

LONGEST_MESSAGE = 4000
"""In characters. A message may contain the reason of a job's end, or an operator's change."""
Detail: TypeAlias = dict[str, str | int | float | bool | None]
_decode_column = JsonColumn[Detail](Detail)


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
    """Return the events with a higher number, oldest first.

    Args:
        tx: a transaction.
        number: of the last event that was already seen.
        limit: largest number of events.
        teams: only events of these teams; None: of all.
        public: also events of no team.
        job: only events of this job; empty: all.
    """
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
        return _decode_column(text)
    except Malformed as error:
        return {"unreadable": str(error)}


def find_newest_event(tx: Connection) -> int:
    """Return the number of the last event; 0: there is none."""
    found: int = tx.execute(select(func.coalesce(func.max(events.c.id), 0))).scalar_one()
    return found
