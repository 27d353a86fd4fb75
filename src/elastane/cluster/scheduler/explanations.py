"""Sentences about a decision: why a job has its size, what it waits for, and what would change that."""

import math
from collections.abc import Callable, Mapping
from functools import partial

from elastane.cluster.nouns.plans import (
    AtLargestUsefulSize,
    AtMaximum,
    BudgetAllows,
    BudgetSpent,
    Decision,
    DidNotArrive,
    DidNotReturn,
    NeverFits,
    NoRoom,
    NoSuchPool,
    OwnedByOthers,
    QuotaReached,
    Suspended,
    TargetMet,
    Why,
)
from elastane.cluster.scheduler.reason_texts import describe_reason
from elastane.cluster.scheduler.wording import format_count, make_sentence

ACTIONS = {
    "start": "starts with",
    "grow": "grows to",
    "shrink": "shrinks to",
    "move": "moves to",
    "keep": "keeps",
}
JOB_OF_ANOTHER_TEAM = "a job of another team"
TIMEOUTS: dict[type[Why], str] = {
    DidNotArrive: "scalingTimeoutInSeconds",
    DidNotReturn: "faultyScaleDownTimeoutInSeconds",
}


def explain_decision(decision: Decision, teams: Mapping[str, str]) -> tuple[str, ...]:
    """Return sentences about a decision: what happens, why, why not more, and what would change it.

    All users that may see the job may read them, so they name no job of another team.

    Args:
        teams: the team of each job that was planned.
    """
    describe = partial(describe_reason, name_job=partial(_choose_job_name, decision.job, teams))
    return write_sentences(_write_headline(decision), decision, describe, suggest_remedy)


def write_sentences(
    headline: str, decision: Decision, describe: Callable[[Why], str], suggest: Callable[[Why], str]
) -> tuple[str, ...]:
    """Return the headline, the reasons of a decision, why it is not larger, and the remedies."""
    found = [headline, *(make_sentence(describe(why)) for why in decision.why)]
    ceiling = decision.ceiling
    if ceiling is not None and ceiling not in decision.why:
        found.append(f"It is not larger: {describe(ceiling)}.")
    remedies = (suggest(why) for why in (*decision.why, *(() if ceiling is None else (ceiling,))))
    return (*found, *dict.fromkeys(remedy for remedy in remedies if remedy))


def _choose_job_name(reader: str, teams: Mapping[str, str], job: str) -> str:
    """Return the name of a job for the readers of a text about the job ``reader``."""
    return job if teams[job] == teams[reader] else JOB_OF_ANOTHER_TEAM


def _write_headline(decision: Decision) -> str:
    size = sum(decision.workers.values())
    where = ", ".join(f"{format_count(n, 'worker')} in {pool}" for pool, n in decision.workers.items())
    heading = f", on its way to {decision.entitled}" if decision.entitled > size else ""
    match decision.action:
        case "preempt":
            gone = format_count(sum(decision.drain.values()), "worker")
            place = "" if decision.asked_for else " and keeps its place in the queue"
            return f"{decision.job} gives back its {gone}{place}."
        case "wait":
            return f"{decision.job} waits."
        case action:
            return f"{decision.job} {ACTIONS[action]} {where}{heading}."


def suggest_remedy(why: Why) -> str:
    """Return a sentence about what would change a reason; empty if nothing can be said."""
    match why:
        case NoRoom(pool=pool, need=need, room=room, node=None):
            missing = math.ceil(need - room)
            becomes = "becomes" if missing == 1 else "become"
            return f"This changes when {format_count(missing, 'more device')} of {pool} {becomes} free."
        case NoRoom(pool=pool, node=node) | QuotaReached(node=str() as node, pool=pool):
            owner = node or "the cluster"
            return f"This changes with more quota of {pool} for {owner}, or when jobs there end."
        case NeverFits(most=most):
            smaller = f"a minimum of at most {format_count(most, 'device')}, or " if most else ""
            return f"This changes with {smaller}more quota or devices."
        case NoSuchPool(image=image) if image:
            return (
                "This changes with a pool of an engine that runs it: of kind kubernetes, or slurm with the "
                "option container."
            )
        case NoSuchPool():
            return "This changes with other resourcesPerWorker or data, with spot, or with a new pool."
        case AtLargestUsefulSize():
            return "This changes with a list of sizes: `elastane scale --sizes` of a job."
        case AtMaximum():
            return "This changes with a higher maxReplicas: `elastane scale` of a job, --workers of a run."
        case Suspended():
            return "This changes with `elastane resume`."
        case OwnedByOthers(pool=pool):
            return f"This changes with a quota of {pool} for its own team, or when the owners lend theirs."
        case BudgetSpent() | BudgetAllows():
            return "This changes with a higher budget: `elastane amend --budget`."
        case TargetMet():
            return "This changes with a higher target: `elastane amend --throughput`."
        case DidNotArrive() | DidNotReturn():
            return f"It is tried again; if its workers need more time, raise {TIMEOUTS[type(why)]}."
        case _:
            return ""
