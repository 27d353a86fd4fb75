"""The occupancy of pools. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from elastane.cluster.nouns.pools import Node, Pool
from elastane.cluster.nouns.usage import Occupancy, Use


def measure_occupancy(
    pools: Iterable[Pool],
    nodes: Iterable[Node],
    uses: Iterable[tuple[Use, ...]],
    reserved: Mapping[str, int],
) -> tuple[Occupancy, ...]:
    """Return the occupancy of each pool.

    Args:
        pools: as a plan sees them.
        nodes: all known ones.
        uses: the current uses of every job.
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
