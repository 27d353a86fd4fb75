"""The decisions about jobs that were carried out. They are never changed."""

from typing import Any

import msgspec
from sqlalchemy import Connection, Row, insert, select

from elastane.cluster.controller.store.columns import JsonColumn, encode_json, is_moment
from elastane.cluster.controller.store.slices import Slice
from elastane.cluster.controller.store.tables import decisions
from elastane.cluster.nouns.plans import Decision
from elastane.common.untrusted_data import Malformed

_decode_decision = JsonColumn[Decision](Decision)
_decode_sentences = JsonColumn[tuple[str, ...]](tuple[str, ...])


class StoredDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a job.

    Args:
        id: grows.
        time_s: of the decision, in seconds since 1970.
        decision: None: it cannot be read.
        sentences: its reason for people.
        unreadable: why it cannot be read.
    """

    id: int
    time_s: float
    decision: Decision | None
    sentences: tuple[str, ...] = ()
    unreadable: str = ""


def insert_decision(
    tx: Connection, decision: Decision, sentences: tuple[str, ...], number: int, now_s: float
) -> None:
    """Store a decision.

    Args:
        tx: a transaction that writes.
        decision: about a job.
        sentences: its reason.
        number: of the change that it is a part of.
        now_s: the time.
    """
    tx.execute(
        insert(decisions).values(
            time_s=now_s,
            change=number,
            job=decision.job,
            decision=encode_json(decision),
            sentences=encode_json(sentences),
        )
    )


def list_decisions(tx: Connection, job: str, limit: int, before: int | None = None) -> Slice[StoredDecision]:
    """Return a job's decisions, newest first."""
    query = select(decisions).where(decisions.c.job == job).order_by(decisions.c.id.desc()).limit(limit + 1)
    if before is not None:
        query = query.where(decisions.c.id < before)
    found = [_read_decision(row) for row in tx.execute(query)]
    items = tuple(found[:limit])
    return Slice(items=items, after=str(items[-1].id) if len(found) > limit else "")


def _read_decision(row: Row[Any]) -> StoredDecision:
    time_s = row.time_s if is_moment(row.time_s) else 0.0
    try:
        decision, sentences = _decode_decision(row.decision), _decode_sentences(row.sentences)
    except Malformed as error:
        return StoredDecision(id=row.id, time_s=time_s, decision=None, unreadable=str(error))
    return StoredDecision(id=row.id, time_s=time_s, decision=decision, sentences=sentences)
