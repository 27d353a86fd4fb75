"""The pools that a job may use, in the order in which it tries them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.images import can_run_image
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.pools import ENGINE_LABEL, Pool


class PoolGroup(NamedTuple):
    """Pools of one device kind at one place: workers of one job may be spread over them.

    Args:
        for_minimum: indices of pools, on-demand ones first, then the cheapest: a minimum must not be lost.
        for_growth: the same pools, spot ones first: a loss of growth costs little.
    """

    for_minimum: tuple[int, ...]
    for_growth: tuple[int, ...]


def find_pool_groups(
    spec: JobSpec, pools: Sequence[Pool], engines: Iterable[DeclaredEngine] = ()
) -> tuple[PoolGroup, ...]:
    """Return the groups that a job may use, best first: by its preferred kinds, then by price and name.

    Args:
        engines: of the pools; they are needed for jobs with an image only.
    """
    wanted, declared = spec.resources_per_worker, {engine.name: engine for engine in engines}
    found: dict[tuple[str, tuple[str, str], str], list[int]] = {}
    for i, pool in enumerate(pools):
        if _is_suitable(spec, pool) and can_run_image(spec.image, declared.get(pool.engine)):
            # One agent has devices of one pool.
            alone = pool.name if pool.engine and needs_one_machine(spec) else ""
            found.setdefault((pool.device, pool.place, alone), []).append(i)

    def rank(members: list[int]) -> tuple[int, float, str]:
        first = pools[members[0]]
        preference = wanted.kinds.index(first.device) if wanted.kinds else 0
        cheapest = min(members, key=lambda i: (pools[i].price, pools[i].name))
        return preference, pools[cheapest].price, pools[cheapest].name

    def order(members: list[int], spot_first: bool) -> tuple[int, ...]:
        return tuple(
            sorted(members, key=lambda i: (pools[i].spot != spot_first, pools[i].price, pools[i].name))
        )

    return tuple(
        PoolGroup(order(members, spot_first=False), order(members, spot_first=True))
        for members in sorted(found.values(), key=rank)
    )


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
