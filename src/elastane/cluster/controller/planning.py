"""The plan: read from the store, made by the scheduler, and written back with its reasons."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection

from elastane.cluster.controller.cluster.uses import charge_jobs
from elastane.cluster.controller.jobs.accounts import charge
from elastane.cluster.controller.jobs.grants import apply_decision
from elastane.cluster.controller.jobs.size_history import AT_REST, is_reclaimed, is_stop
from elastane.cluster.controller.jobs.stored_job import SizeReason, require_alive
from elastane.cluster.controller.snapshot import take_cluster_snapshot
from elastane.cluster.controller.store import history, jobs
from elastane.cluster.controller.store.database import count_change, read_change
from elastane.cluster.controller.store.jobs import PlannedSize
from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.plans import Decision, Plan, Why

EVENTS = {"start": "started", "grow": "grown", "shrink": "shrunk", "move": "moved", "preempt": "preempted"}
"""The event of each action. A job that people or its own rules stop is not preempted."""


class Scheduler(NamedTuple):
    """The pure functions that plan and explain.

    Args:
        explain: returns the headline of a decision and a sentence per reason, given the team of each job.
    """

    plan: Callable[[Snapshot], Plan]
    explain: Callable[[Decision, Mapping[str, str]], tuple[str, ...]]

    def explain_stop(self, job: str, why: Why | None, teams: Mapping[str, str]) -> str:
        """Return the reason of a stop as a sentence; empty if ``why`` is None."""
        if why is None:
            return ""
        _, sentence, *_ = self.explain(Decision(job=job, action="preempt", why=(why,)), teams)
        return sentence


class WordedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, and its reason in sentences."""

    decision: Decision
    sentences: tuple[str, ...]


class PlannedChanges(msgspec.Struct, frozen=True, tag=True):
    """The changes of a plan.

    Args:
        change: number of the last change that the plan knows of.
        worded: decisions with another size than the stored one, or with other reasons.
        wrong: by job, the part of its record that cannot be read.
        undecidable: names of jobs about which therefore nothing is decided.
    """

    change: int
    worded: tuple[WordedDecision, ...]
    wrong: dict[str, str] = {}
    undecidable: frozenset[str] = frozenset()


class PlanOutdated(Exception):
    """Something that the plan depended on has changed since, so nothing was decided."""


def make_cluster_plan(tx: Connection, now_s: float, scheduler: Scheduler) -> PlannedChanges:
    """Plan from the store. For 10,000 jobs, this takes a second of one core.

    Raises:
        UnreadableRecord: something that the share of every job depends on cannot be read.
    """
    taken = take_cluster_snapshot(tx, now_s)
    plan = scheduler.plan(taken.snapshot)
    known = jobs.map_planned_sizes(tx)
    teams = {job.name: job.spec.team for job in taken.snapshot.jobs}
    worded = (
        WordedDecision(decision=decision, sentences=scheduler.explain(decision, teams))
        for decision in plan.decisions
        if decision.job not in taken.undecidable
    )
    new = tuple(entry for entry in worded if entry.decision.action not in AT_REST or _is_new(entry, known))
    return PlannedChanges(taken.change, new, taken.wrong, taken.undecidable)


def _is_new(entry: WordedDecision, known: Mapping[str, PlannedSize]) -> bool:
    """Return whether the stored sentences or the stored size differ.

    Sentences are compared instead of values, because they round numbers that change with every plan.
    """
    stored = known[entry.decision.job]
    has_stop = stored.reason.stop is not None
    return (stored.reason.sentences, stored.promised, has_stop) != (
        entry.sentences,
        entry.decision.entitled,
        not entry.decision.workers,
    )


def carry_out_plan(tx: Connection, found: PlannedChanges, now_s: float) -> None:
    """Write the decisions of a plan, and charge the jobs for the devices that they use from now on.

    Raises:
        PlanOutdated: there was another change since.
    """
    write_decisions(tx, found.worded, at=found.change, now_s=now_s)
    uses, before = charge_jobs(take_cluster_snapshot(tx, now_s, running=True).snapshot), jobs.map_uses(tx)
    # Undecidable jobs keep their uses until they are gone.
    differing = {
        name
        for name in (uses.keys() | before.keys()) - found.undecidable
        if uses.get(name, ()) != before.get(name, ())
    }
    for job in jobs.find_jobs(tx, differing):
        jobs.write_job(tx, job, charge(job, uses.get(job.name, ()), now_s))


def write_decisions(tx: Connection, worded: Sequence[WordedDecision], *, at: int, now_s: float) -> int:
    """Write the grants of a plan with their reasons, or nothing.

    If all sizes and reasons are the stored ones, it writes nothing at all.

    Args:
        at: number of the change that the plan's snapshot was made at.

    Returns:
        Number of the change that these decisions are; ``at``, if no size changes.

    Raises:
        PlanOutdated: there was another change since.
    """
    if read_change(tx) != at:
        raise PlanOutdated
    sizes = [entry for entry in worded if entry.decision.action not in AT_REST]
    reasons = [entry for entry in worded if entry.decision.action in AT_REST]
    known = jobs.map_planned_sizes(tx, [entry.decision.job for entry in reasons])
    new = {
        entry.decision.job: PlannedSize(_state_reason(entry, now_s), entry.decision.entitled)
        for entry in reasons
        if _is_new(entry, known)
    }
    jobs.update_reasons(tx, new)
    if not sizes:
        return at
    number = count_change(tx)
    for entry in sizes:
        _write_size(tx, entry, number, now_s)
    return number


def _state_reason(entry: WordedDecision, now_s: float) -> SizeReason:
    stop = None if entry.decision.workers else entry.decision.why[0]
    return SizeReason(stop=stop, sentences=entry.sentences, decided_s=now_s)


def _write_size(tx: Connection, entry: WordedDecision, number: int, now_s: float) -> None:
    """Give a job another size: the only place where devices change hands."""
    decision = entry.decision
    (before,) = jobs.find_jobs(tx, [decision.job])
    require_alive(before)
    after = apply_decision(before, decision, _state_reason(entry, now_s), now_s)
    jobs.write_job(tx, before, after, always=("grant", "observed", "reason"))
    history.insert_decision(tx, decision, entry.sentences, number, now_s)
    detail: history.Detail = {"from": before.workers, "to": after.workers}
    if is_reclaimed(decision) and after.workers < before.workers:
        detail["reclaimed"] = True
    history.append_event(
        tx,
        "job.stopping" if is_stop(decision) else f"job.{EVENTS[decision.action]}",
        " ".join(entry.sentences[:2]),
        now_s,
        team=before.team,
        job=before.name,
        detail=detail,
    )
