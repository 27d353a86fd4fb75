"""The pools that a job may use, in the order in which it tries them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.images import can_run_image
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.pools import ENGINE_LABEL, Pool


class PoolGroup(NamedTuple):
    """Pools of one device kind at one place: workers of one job may be spread over them.

    A job that has data at several sites has pools of all of them in one group.

    Args:
        for_minimum: indices of pools, on-demand ones first, then the cheapest: a minimum must not be lost.
        for_growth: the same pools, spot ones first: a loss of growth costs little.
        sites: the pools at each site at which the job needs a worker; empty: it needs none at a certain one.
    """

    for_minimum: tuple[int, ...]
    for_growth: tuple[int, ...]
    sites: tuple[frozenset[int], ...] = ()


def find_pool_groups(
    spec: JobSpec,
    pools: Sequence[Pool],
    engines: Iterable[DeclaredEngine] = (),
    allowed: Collection[str] = (),
) -> tuple[PoolGroup, ...]:
    """Return the groups that a job may use, best first: by its preferred kinds, then by price and name.

    Args:
        engines: of the pools; they are needed for jobs with an image or with sites only.
        allowed: the sites at which the data of its team may be read; empty: any.
    """
    wanted, declared = spec.resources_per_worker, {engine.name: engine for engine in engines}
    found: dict[tuple[str, tuple[str, str], str], list[int]] = {}
    sites = spec.data.sites
    for i, pool in enumerate(pools):
        is_allowed = not allowed or pool.site in allowed
        if is_allowed and _is_suitable(spec, pool) and can_run_image(spec.image, declared.get(pool.engine)):
            # One agent has devices of one pool.
            alone = pool.name if pool.engine and needs_one_machine(spec) else ""
            found.setdefault((pool.device, _find_place(pool, sites, declared), alone), []).append(i)

    def rank(members: list[int]) -> tuple[int, float, str]:
        first = pools[members[0]]
        preference = wanted.kinds.index(first.device) if wanted.kinds else 0
        cheapest = min(members, key=lambda i: (pools[i].price, pools[i].name))
        return preference, pools[cheapest].price, pools[cheapest].name

    def order(members: list[int], spot_first: bool) -> tuple[int, ...]:
        return tuple(
            sorted(members, key=lambda i: (pools[i].spot != spot_first, pools[i].price, pools[i].name))
        )

    def divide(members: list[int]) -> tuple[frozenset[int], ...]:
        return tuple(frozenset(i for i in members if pools[i].site == site) for site in sites)

    return tuple(
        PoolGroup(order(members, spot_first=False), order(members, spot_first=True), divide(members))
        for members in sorted(found.values(), key=rank)
        if all(divide(members))
    )


def find_sites_without_pool(
    spec: JobSpec, pools: Sequence[Pool], engines: Iterable[DeclaredEngine]
) -> tuple[str, ...]:
    """Return the sites of a job at which no pool has what one of its workers asks for."""
    here = msgspec.structs.replace
    alone = {site: here(spec, data=here(spec.data, sites=(site,))) for site in spec.data.sites}
    return tuple(site for site, one in alone.items() if not find_pool_groups(one, pools, engines))


def _find_place(pool: Pool, sites: Sequence[str], engines: Mapping[str, DeclaredEngine]) -> tuple[str, str]:
    """Return what pools must have in common for workers of one job.

    Agents at several sites may belong to several engines, but either all share the home of the controller, or
    none does.
    """
    if not sites:
        return pool.place
    engine = engines.get(pool.engine)
    return "" if engine is None or engine.shares_home else "own", ""


def needs_one_machine(spec: JobSpec) -> bool:
    """Return whether a job may have several workers, all of which must be on one machine."""
    return spec.stays_together and spec.elastic_policy.limits[1] > 1


def _is_suitable(spec: JobSpec, pool: Pool) -> bool:
    wanted, devices = spec.resources_per_worker, spec.worker_devices
    fits_node = devices <= pool.devices_per_node
    # The agents of an engine are on any of its machines, and none has devices of two machines.
    if pool.engine and not (fits_node and _fits_agents(spec, pool)):
        return False
    return (
        (not wanted.kinds or pool.device in wanted.kinds)
        and (fits_node or (spec.processes == 1 and devices % pool.devices_per_node == 0))
        and (spec.spot or not pool.spot)
        and (not spec.data.regions or pool.site in spec.data.regions)
        # Only agents learn their site.
        and (not spec.data.sites or (bool(pool.engine) and pool.site in spec.data.sites))
        and all(
            (pool.engine if key == ENGINE_LABEL else pool.labels.get(key)) == value
            for key, value in spec.data.labels.items()
        )
    )


def _fits_agents(spec: JobSpec, pool: Pool) -> bool:
    """Return whether agents of the pool's engine can hold the workers of a job.

    Workers that must be on one machine are those of one agent, and the size of an agent cannot change.
    """
    low, high = spec.elastic_policy.limits
    return not needs_one_machine(spec) or low == high <= pool.count_agent_workers(spec.worker_devices)
