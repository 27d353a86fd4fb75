"""Remedies: changes by people or with time that would change a decision."""

import math

from elastane.cluster.nouns.plans import (
    AtLargestUsefulSize,
    AtMaximum,
    BudgetAllows,
    BudgetSpent,
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
from elastane.cluster.scheduler.wording import format_count

TIMEOUTS: dict[type[Why], str] = {
    DidNotArrive: "scalingTimeoutInSeconds",
    DidNotReturn: "faultyScaleDownTimeoutInSeconds",
}


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
