"""Decisions: the only place where devices change hands."""

from collections.abc import Iterable

import msgspec
from sqlalchemy import Connection, insert, select

from elastane.api.plans import Decision
from elastane.api.wire import Decided, Explanation, Grant, Page, State
from elastane.controller.store import jobs
from elastane.controller.store.database import change, changed
from elastane.controller.store.rows import text_of
from elastane.controller.store.tables import decisions

CHANGES = ("start", "grow", "shrink", "move", "preempt")


class Worded(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, and its reason in sentences."""

    decision: Decision
    sentences: tuple[str, ...]


class Outdated(Exception):
    """Something that the plan depended on has changed since; nothing was decided."""


def decide(tx: Connection, worded: Iterable[Worded], *, at: int, now_s: float) -> int:
    """Writes the grants of a plan with their reasons, or nothing.

    Args:
        tx: a transaction that writes.
        worded: a decision for each job whose size or whose reasons change; of others it does no harm.
        at: number of the change that the plan's snapshot was made at.
        now_s: the time.

    Returns:
        Number of the change that these decisions are.

    Raises:
        Outdated: there has been another change since.
    """
    if change(tx) != at:
        raise Outdated
    number = changed(tx)
    for one in worded:
        decision = one.decision
        explained = Explanation(sentences=one.sentences, decided_s=now_s)
        if decision.action not in CHANGES:
            jobs.explain(tx, decision.job, explained)
            continue
        given = Grant(
            workers=decision.workers, drain_until_s=now_s + decision.drain_s if decision.drain else 0.0
        )
        jobs.grant(tx, decision.job, given, _state(decision), explained, now_s=now_s)
        tx.execute(
            insert(decisions).values(
                time_s=now_s,
                change=number,
                job=decision.job,
                decision=text_of(decision),
                sentences=text_of(one.sentences),
            )
        )
    return number


def _state(decision: Decision) -> State:
    """A job that gives everything back still runs until its workers have been seen gone."""
    return "running" if decision.workers or decision.drain else "queued"


def newest(tx: Connection, job: str, limit: int, before: int | None = None) -> Page[Decided]:
    """A job's decisions, newest first."""
    query = select(decisions).where(decisions.c.job == job).order_by(decisions.c.id.desc()).limit(limit + 1)
    if before is not None:
        query = query.where(decisions.c.id < before)
    found = []
    for row in tx.execute(query):
        decision = msgspec.json.decode(row.decision, type=Decision)
        found.append(
            Decided(
                id=row.id,
                time_s=row.time_s,
                action=decision.action,
                workers=decision.workers,
                sentences=msgspec.json.decode(row.sentences, type=tuple[str, ...]),
            )
        )
    items = tuple(found[:limit])
    return Page(items=items, after=str(items[-1].id) if len(found) > limit else "")
