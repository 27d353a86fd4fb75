"""Who computes which virtual ranks."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from elastane.protocol.tree import Span, cover, find_spans

ROUNDING = 1e-9
"""A quota this near to a whole number is one."""


@lru_cache(maxsize=256)
def assign_shares(size: int, speeds: tuple[float, ...]) -> tuple[Span, ...]:
    """Contiguous shares of ``range(size)``, one per worker, in proportion to their speeds.

    Nobody gets none while there are enough for all: who computes nothing is not measured, and would never be
    seen to have become faster. Each share is the worker's quota rounded down or up. Among all such dealings
    the one with the fewest nodes of the tree is taken (dynamic programming over borders), because every node
    beyond the first is a partial sum more to hold and to send.

    Args:
        size: V, the number of virtual ranks.
        speeds: of the workers in the order of the generation, each > 0.
    """
    quotas = _quotas(size, speeds)
    floors = [int(quota + ROUNDING) for quota in quotas]
    # borders[p]: (nodes so far, shares so far) of the cheapest way to have dealt p ranks.
    borders: dict[int, tuple[int, tuple[Span, ...]]] = {0: (0, ())}
    for i, low in enumerate(floors):
        choices = (low,) if quotas[i] - low < ROUNDING else (low, low + 1)
        after: dict[int, tuple[int, tuple[Span, ...]]] = {}
        for place, (nodes, shares) in borders.items():
            for choice in choices:
                stop = place + choice
                if stop > size:
                    continue
                cost = nodes + len(cover(range(place, stop), size))
                if stop not in after or cost < after[stop][0]:
                    after[stop] = (cost, (*shares, (place, stop)))
        borders = after
    return borders[size][1]


def _quotas(size: int, speeds: tuple[float, ...]) -> list[float]:
    """In proportion to speed what is left when those too slow for one have one each."""
    slow: frozenset[int] = frozenset()
    while True:
        rest = size - len(slow)
        total = sum(speed for i, speed in enumerate(speeds) if i not in slow)
        quotas = [1.0 if i in slow else rest * speed / total for i, speed in enumerate(speeds)]
        slower = frozenset(i for i, quota in enumerate(quotas) if quota < 1 - ROUNDING)
        if not slower or size < len(speeds):
            return quotas
        slow |= slower


def assign_missing(
    size: int, claims: Mapping[int, frozenset[int]], speeds: Mapping[int, float]
) -> dict[int, tuple[Span, ...]]:
    """Deal the virtual ranks that nobody claims, so that all end at about the same time.

    Args:
        size: V.
        claims: what each worker has computed or will compute anyway.
        speeds: of the workers that may be given more; others keep their claims.

    Returns:
        What each worker is given in addition; nothing for those not named.
    """
    taken = frozenset[int]().union(*claims.values())
    missing = [rank for rank in range(size) if rank not in taken]
    load = {worker: float(len(claims.get(worker, ()))) for worker in speeds}
    counts = dict.fromkeys(speeds, 0)
    for _ in missing:
        # Whoever would be done first with one more; the order of the members breaks ties.
        worker = min(speeds, key=lambda w: (load[w] + 1) / speeds[w])
        load[worker] += 1
        counts[worker] += 1
    dealt: dict[int, tuple[Span, ...]] = {}
    place = 0
    for worker, count in counts.items():
        if count:
            dealt[worker] = find_spans(missing[place : place + count])
            place += count
    return dealt


def count_share_sizes(shares: Sequence[Span]) -> tuple[int, ...]:
    """How many virtual ranks each share holds."""
    return tuple(stop - start for start, stop in shares)
