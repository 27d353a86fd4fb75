"""Moves to cheaper places: a job with data at several sites gives up a worker where devices have become dear.

It moves one worker at a time, to devices that no job has a claim to, and keeps a worker at each of its sites.
The move must earn back within the horizon what it costs: both workers are paid for a while, the others wait
for the resize, and the state may come from another site. Then the job rests, as after a resize. Each
move makes the job cheaper by a part of a price, so with constant prices it makes few of them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.plans import CheaperElsewhere
from elastane.cluster.nouns.usage import BYTES_PER_GB
from elastane.cluster.scheduler.limits import compute_growth_rest_s
from elastane.cluster.scheduler.planned_job import PlannedJob

LEAST_SAVING = 0.1
"""The part of the present price that a move must save at least, so that noise in prices moves no worker."""

START_S = 60.0
"""Seconds for which both workers are paid and one trains at most, as assumed: until the old one has left at a
commit, and until the new one has begun."""

PARAMETER_BYTES = 16
"""The most state of a parameter that comes to a new worker: itself, the momentum of an outer optimizer, and
two moments of an inner one."""


class PriceMove(NamedTuple):
    """A worker moves from one pool to another, both given by their indices."""

    source: int
    target: int
    why: CheaperElsewhere


def may_follow_prices(job: PlannedJob, snapshot: Snapshot) -> bool:
    """Return whether a job is at rest, so that one of its workers may move for a lower price."""
    state, now_s = job.state, snapshot.now_s
    if not job.groups or len(job.groups[0].sites) <= 1:
        return False
    if not job.size == job.held_workers == job.live_workers:
        return False
    if state.draining or state.starting_since_s is not None or state.faulty_since_s is not None:
        return False
    changed_s = max(state.started_s or 0.0, state.resized_s or 0.0)
    return now_s >= changed_s + compute_growth_rest_s(state, snapshot.rules, now_s)


def find_price_move(
    job: PlannedJob, kept: Mapping[int, int], snapshot: Snapshot, count_free: Callable[[int, int], int]
) -> PriceMove | None:
    """Return the move that saves most beyond its cost; None: no move is worth it.

    Args:
        job: it may follow prices.
        kept: its workers by pool.
        count_free: returns how many workers that leave a pool, the first argument, fit into another one
            beside all that jobs have a claim to.
    """
    found = [
        move
        for source in kept
        for target in job.groups[0].for_minimum
        if source != target
        and _may_leave(job, kept, source, target, snapshot)
        and count_free(source, target) > 0
        if (move := _weigh(job, kept, source, target, snapshot)) is not None
    ]
    return max(found, key=lambda move: move.why.saved - move.why.cost, default=None)


def _may_leave(
    job: PlannedJob, kept: Mapping[int, int], source: int, target: int, snapshot: Snapshot
) -> bool:
    """Return whether a worker may leave a pool for another one.

    The last one of a site stays there, and a minimum stays on devices that are not taken away.
    """
    pools, sites = snapshot.pools, job.groups[0].sites
    here = next((site for site in sites if source in site), frozenset())
    if target not in here and sum(kept.get(pool, 0) for pool in here) == 1:
        return False
    if pools[target].spot and not pools[source].spot:
        return sum(workers for pool, workers in kept.items() if not pools[pool].spot) > job.minimum
    return True


def _weigh(
    job: PlannedJob, kept: Mapping[int, int], source: int, target: int, snapshot: Snapshot
) -> PriceMove | None:
    """Return the move with what it saves and costs; None: it saves too little."""
    here, there = snapshot.pools[source], snapshot.pools[target]
    if there.price > here.price * (1.0 - LEAST_SAVING) or here.price <= 0.0:
        return None
    horizon_s = _find_horizon_s(job, snapshot)
    saved = (here.price - there.price) * job.devices * horizon_s / 3600
    whole = sum(snapshot.pools[pool].price * workers for pool, workers in kept.items()) * job.devices
    sites = {snapshot.pools[pool].site for pool in kept}
    both = (here.price + there.price) * job.devices
    cost = (both * START_S + whole * job.state.resize_s) / 3600
    cost += _price_state(job, snapshot, sites, there.site)
    if saved <= cost:
        return None
    why = CheaperElsewhere(
        pool=here.name,
        price=here.price,
        target=there.name,
        target_price=there.price,
        saved=saved,
        cost=cost,
        horizon_s=horizon_s,
    )
    return PriceMove(source, target, why)


def _find_horizon_s(job: PlannedJob, snapshot: Snapshot) -> float:
    """Return for how long a lower price counts: to the end of the job, at most for the horizon."""
    state, horizon_s = job.state, snapshot.rules.horizon_s
    if state.remaining is None or not state.speeds:
        return horizon_s
    return min(horizon_s, state.remaining / job.speed_model.compute_speed(job.size))


def _price_state(job: PlannedJob, snapshot: Snapshot, sites: Iterable[str], target: str) -> float:
    """Return the cost of the state of a new worker if all of it comes from the dearest of the other sites."""
    prices = {entry.name: entry for entry in snapshot.egress}
    dearest = max(
        (prices[site].find_price(target) for site in sites if site != target and site in prices), default=0.0
    )
    return job.state.parameters * PARAMETER_BYTES / BYTES_PER_GB * dearest
