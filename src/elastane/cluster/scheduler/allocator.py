"""The allocator: which workers every job is entitled to, as if every job could change at once.

From the leaves of the quota tree to its root, each node hands out what it owns: first minimums, then growth.
What a team does not use goes up to its cohort, and from there to the cluster, where other teams borrow it. So
an owner always comes before a borrower, and nothing that a job may use stays idle.

Failed devices that may come back count as present, but not for a job that has to give workers up: no job
waits for present devices because another job waits for its repair. Places that a job holds in its team or
cohort are released where the holds are futile: where borrowers would take them.
"""

from collections.abc import Iterator, Sequence

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.config import SchedulingRules
from elastane.cluster.scheduler.allocation import Allocation
from elastane.cluster.scheduler.cluster_index import ClusterIndex, count_missing_devices, index_cluster
from elastane.cluster.scheduler.growth import grant_growth
from elastane.cluster.scheduler.holds import find_futile_holders
from elastane.cluster.scheduler.limits import compute_repair_deadline_s
from elastane.cluster.scheduler.minimums import MinimumRound
from elastane.cluster.scheduler.planned_job import PlannedJob
from elastane.cluster.scheduler.quota_ledger import QuotaLedger
from elastane.cluster.scheduler.sizes import round_down_to_size


def allocate(snapshot: Snapshot) -> tuple[ClusterIndex, Allocation]:
    """Index a snapshot and hand out all devices anew.

    Returns:
        The index, with the grants of its jobs; and the allocation.
    """
    repairing, futile = _find_repairing(snapshot), set[int]()
    while True:
        cluster = index_cluster(snapshot, repairing)
        for job in cluster.jobs:
            job.holds_last_quota_only = job.number in futile
        allocation = _hand_out_all(cluster)
        losers = {
            job.number for job in cluster.jobs if job.granted_in_place < _compute_kept_size(job)
        } & repairing
        more_futile = find_futile_holders(allocation) - futile
        if not losers and not more_futile:
            return cluster, allocation
        # A job that must give something up is not waited for; that may cost another job what it has.
        repairing -= losers
        futile |= more_futile


def _hand_out_all(cluster: ClusterIndex) -> Allocation:
    allocation = Allocation(QuotaLedger(cluster.tree, cluster.growable), tuple(cluster.pools), cluster.jobs)
    below: dict[int, list[PlannedJob]] = {}
    for job in cluster.jobs:
        if job.max_workers:
            for node in job.path[: job.level + 1]:
                below.setdefault(node, []).append(job)
    for node in cluster.tree.upwards:
        _hand_out(allocation, node, below, cluster.snapshot.rules)
    for job in cluster.jobs:
        _round_down(allocation, job)
    return allocation


def _hand_out(
    allocation: Allocation, node: int, below: dict[int, list[PlannedJob]], rules: SchedulingRules
) -> None:
    """Hand out what a node owns.

    A round that has taken something back from nodes below names them one by one. Each is refilled by a round
    of its own, which may name nodes further down, before the round above goes on.
    """
    rounds = [_run_round(allocation, node, below.get(node, ()), rules)]
    while rounds:
        refill = next(rounds[-1], None)
        if refill is None:
            rounds.pop()
        else:
            rounds.append(_run_round(allocation, refill, below.get(refill, ()), rules))
        allocation.waiting_round = node if len(rounds) > 1 else None


def _run_round(
    allocation: Allocation, node: int, jobs: Sequence[PlannedJob], rules: SchedulingRules
) -> Iterator[int]:
    """Grant minimums, then growth, on the quota of a node; yield each node to refill before it goes on."""
    waiting = [job for job in jobs if not job.has_minimum]
    yield from MinimumRound(allocation, node, waiting, rules.fairness_grain).run()
    grant_growth(allocation, node, (job for job in jobs if job.has_minimum), rules)


def _round_down(allocation: Allocation, job: PlannedJob) -> None:
    """Take back growth that is left at an illegal size, because other workers were not granted."""
    while job.entitled != round_down_to_size(job.sizes, job.entitled) and job.grants[-1].growth:
        allocation.take_back(job.grants[-1])


def _find_repairing(snapshot: Snapshot) -> set[int]:
    """Return the numbers of jobs on devices that are gone and may still come back."""
    faulty = [state for state in snapshot.jobs if compute_repair_deadline_s(state) > snapshot.now_s]
    missing = count_missing_devices(snapshot) if faulty else {}
    return {
        state.number
        for state in faulty
        if any(holding.failed and holding.pool in missing for holding in state.holds)
    }


def _compute_kept_size(job: PlannedJob) -> int:
    """Return the workers that a job would keep if no other job had a better right to them."""
    return round_down_to_size(job.sizes, min(job.held_workers, job.max_workers))
