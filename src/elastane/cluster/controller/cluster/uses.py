"""The devices that jobs use: their terms and prices, and the occupancy of the pools. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from elastane.cluster.nouns.cluster import Holding, JobState, Snapshot
from elastane.cluster.nouns.config import Cohort, Team
from elastane.cluster.nouns.pools import Node, Pool
from elastane.cluster.nouns.usage import Occupancy, Use


def charge_jobs(snapshot: Snapshot) -> dict[str, tuple[Use, ...]]:
    """Return the uses of each job by name, without jobs that use nothing.

    The quota of a team pays for its oldest jobs first, then the quotas of its cohorts, the nearest first.
    Devices beyond these are borrowed. Devices of a spot pool are always on spot terms.
    """
    pools = {pool.name: pool for pool in snapshot.pools}
    owners = _map_owners(snapshot)
    nodes: tuple[Cohort | Team, ...] = (*snapshot.cohorts, *snapshot.teams)
    unused = {(node.name, quota.pool): quota.nominal_quota for node in nodes for quota in node.quotas}
    found: dict[str, tuple[Use, ...]] = {}
    for state in sorted(snapshot.jobs, key=lambda state: state.number):
        uses: list[Use] = []
        for name, devices in sorted(_count_devices(state, pools).items()):
            if not devices:
                continue
            pool = pools.get(name)
            price = 0.0 if pool is None else pool.price
            if pool is not None and pool.spot:
                uses.append(Use(pool=name, terms="spot", devices=devices, price=price))
                continue
            own = 0
            for owner in owners.get(state.spec.team, ()):
                paid = min(devices - own, unused.get((owner, name), 0))
                unused[owner, name] = unused.get((owner, name), 0) - paid
                own += paid
            if own:
                uses.append(Use(pool=name, terms="owned", devices=own, price=price))
            if devices > own:
                uses.append(Use(pool=name, terms="borrowed", devices=devices - own, price=price))
        if uses:
            found[state.name] = tuple(uses)
    return found


def _map_owners(snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    """Return the owners of the quotas that pay for each team: the team itself, then its cohorts upwards."""
    parents = {cohort.name: cohort.parent for cohort in snapshot.cohorts}
    found = {}
    for team in snapshot.teams:
        path, above = [team.name], team.cohort
        while above in parents:
            path.append(above)
            above = parents[above]
        found[team.name] = tuple(path)
    return found


def _count_devices(state: JobState, pools: Mapping[str, Pool]) -> dict[str, int]:
    """Return the devices of a job by pool: those that stay, and those that are still draining.

    What waits in the queue of an engine holds none, and costs nothing.
    """
    found: dict[str, int] = {}
    for place in state.places:
        pool, workers = pools.get(place.pool), place.workers
        if isinstance(place, Holding) and pool is not None and pool.engine:
            workers -= place.pending
        devices = workers * state.spec.worker_devices
        found[place.pool] = found.get(place.pool, 0) + devices
    return found


def measure_occupancy(
    pools: Iterable[Pool], nodes: Iterable[Node], uses: Iterable[tuple[Use, ...]], reserved: Mapping[str, int]
) -> tuple[Occupancy, ...]:
    """Return the occupancy of each pool.

    Args:
        pools: as a plan sees them.
        reserved: devices that the calendar reserves, by pool.
    """
    used = Counter[str]()
    seen = Counter(node.pool for node in nodes)
    for job in uses:
        for use in job:
            used[use.pool] += use.devices
    return tuple(
        Occupancy(
            pool=pool.name,
            device=pool.device,
            devices=pool.devices,
            leaving=pool.leaving,
            reserved=min(reserved.get(pool.name, 0), max(0, pool.devices - pool.leaving)),
            used=used[pool.name],
            spot=pool.spot,
            price=pool.price,
            site=pool.site,
            nodes=seen[pool.name],
        )
        for pool in pools
    )
