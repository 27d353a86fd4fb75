"""Decisions: the only place where devices change hands."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, insert, select

from elastane.api.history import DecisionRecord
from elastane.api.job_records import Explanation, Grant
from elastane.api.plans import Decision
from elastane.api.rest import Job, JobExplanation, Page
from elastane.api.untrusted_data import Malformed
from elastane.controller.standing import AT_REST, stopped_for_others
from elastane.controller.store import events, jobs
from elastane.controller.store.columns import JsonColumn, is_moment, text_of
from elastane.controller.store.database import change, changed
from elastane.controller.store.tables import decisions

KINDS = {"start": "started", "grow": "grown", "shrink": "shrunk", "move": "moved", "preempt": "preempted"}
"""Events of decisions. Of a job that people or its own rules have stopped, nothing was taken: see `_kind`."""


_decision_in = JsonColumn[Decision](Decision)
_sentences_in = JsonColumn[tuple[str, ...]](tuple[str, ...])


class Worded(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, and its reason in sentences."""

    decision: Decision
    sentences: tuple[str, ...]


class Outdated(Exception):
    """Something that the plan depended on has changed since; nothing was decided."""


def decide(tx: Connection, worded: Sequence[Worded], *, at: int, now_s: float) -> int:
    """Writes the grants of a plan with their reasons, or nothing.

    A plan at rest, whose decisions are what is there with reasons that are there, writes nothing at all.

    Args:
        tx: a transaction that writes.
        worded: a decision for each job.
        at: number of the change that the plan's snapshot was made at.
        now_s: the time.

    Returns:
        Number of the change that these decisions are; ``at``, if no size changes.

    Raises:
        Outdated: there has been another change since.
    """
    if change(tx) != at:
        raise Outdated
    sizes = [one for one in worded if one.decision.action not in AT_REST]
    reasons = [one for one in worded if one.decision.action in AT_REST]
    known = jobs.told(tx, [one.decision.job for one in reasons])
    new = [
        one for one in reasons if known[one.decision.job] != jobs.Told(one.sentences, one.decision.entitled)
    ]
    jobs.explain(
        tx, {one.decision.job: jobs.Told(one.sentences, one.decision.entitled) for one in new}, now_s
    )
    if not sizes:
        return at
    number = changed(tx)
    for one in sizes:
        decision = one.decision
        given = Grant(
            workers=decision.workers, drain_until_s=now_s + decision.drain_s if decision.drain else 0.0
        )
        explained = Explanation(sentences=one.sentences, decided_s=now_s)
        before = jobs.grant(tx, decision, given, explained, now_s=now_s)
        tx.execute(
            insert(decisions).values(
                time_s=now_s,
                change=number,
                job=decision.job,
                decision=text_of(decision),
                sentences=text_of(one.sentences),
            )
        )
        events.append(
            tx,
            f"job.{_kind(decision)}",
            " ".join(one.sentences[:2]),
            now_s,
            team=before.team,
            job=before.name,
            detail={"from": before.workers, "to": sum(decision.workers.values())},
        )
    return number


def _kind(decision: Decision) -> str:
    return "stopping" if _is_stop(decision) else KINDS[decision.action]


def _is_stop(decision: Decision) -> bool:
    """Whether a job gives all back for a reason of its own: a pause is no preemption."""
    return decision.action == "preempt" and not stopped_for_others(decision)


def explained(tx: Connection, job: Job, limit: int) -> JobExplanation:
    """Why a job has the size it has, and its newest decisions."""
    return JobExplanation(
        job=job.name,
        state=job.state,
        wanted=job.wanted,
        workers=job.workers,
        explanation=job.explained,
        decisions=newest(tx, job.name, limit).items,
    )


def newest(tx: Connection, job: str, limit: int, before: int | None = None) -> Page[DecisionRecord]:
    """A job's decisions, newest first."""
    query = select(decisions).where(decisions.c.job == job).order_by(decisions.c.id.desc()).limit(limit + 1)
    if before is not None:
        query = query.where(decisions.c.id < before)
    found = [_decided(row) for row in tx.execute(query)]
    items = tuple(found[:limit])
    return Page(items=items, after=str(items[-1].id) if len(found) > limit else "")


def _decided(row: Row[Any]) -> DecisionRecord:
    time_s = row.time_s if is_moment(row.time_s) else 0.0
    try:
        decision, sentences = _decision_in(row.decision), _sentences_in(row.sentences)
    except Malformed as error:
        said = (f"The record of this decision cannot be read: {error}.",)
        return DecisionRecord(id=row.id, time_s=time_s, action="unreadable", workers={}, sentences=said)
    return DecisionRecord(
        id=row.id,
        time_s=time_s,
        action="stop" if _is_stop(decision) else decision.action,
        workers=decision.workers,
        sentences=sentences,
    )
