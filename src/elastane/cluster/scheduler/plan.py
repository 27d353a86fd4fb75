"""The plan: one decision for every job, each with its reasons."""

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.plans import Plan
from elastane.cluster.scheduler.allocator import allocate
from elastane.cluster.scheduler.changes import compute_changes
from elastane.cluster.scheduler.decisions import DecisionMaker


def plan(snapshot: Snapshot) -> Plan:
    """Decide for every job of the snapshot.

    Equal snapshots give equal plans. ``docs/scheduling.md`` has the rules and the cost of a plan.

    Raises:
        ValueError: cohorts that are each other's parents; `elastane.cluster.nouns.cluster_checks` refuses
        them earlier.
    """
    # 1. Hand out all devices anew, as if every job could change at once.
    cluster, allocation = allocate(snapshot)
    # 2. Compute the changes that are possible now, while workers still leave.
    changes = compute_changes(cluster)
    # 3. Turn the changes into decisions with reasons.
    maker = DecisionMaker(cluster, allocation)
    decisions = tuple(maker.decide(job, change) for job, change in zip(cluster.jobs, changes, strict=True))
    return Plan(decisions=decisions)
