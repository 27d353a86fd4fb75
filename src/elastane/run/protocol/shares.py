"""Shares: the virtual ranks that each worker computes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, groupby, islice

from elastane.run.protocol.layout import FRESH
from elastane.run.protocol.tree import Span, cover, expand_spans, find_spans

ROUNDING = 1e-9
"""A quota this close to a whole number counts as that number."""


@lru_cache(maxsize=256)
def assign_shares(size: int, speeds: tuple[float, ...], nodes: tuple[int, ...] = ()) -> tuple[Span, ...]:
    """Return contiguous shares of ``range(size)``, one per worker, in proportion to their speeds.

    Every worker gets at least one virtual rank if there are enough, because a worker that computes nothing
    has no measured speed. Each share is the worker's quota rounded down or up. The machines come first: their
    virtual ranks form as few nodes of the tree as possible, because every further node is one more partial
    sum on the wire. Then the same holds for the workers of each machine, because every further node is one
    more partial sum to hold.

    Args:
        size: V, the number of virtual ranks.
        speeds: the speeds of the workers in the order of the generation, each > 0.
        nodes: the number of workers on each machine, in the same order; empty: all are on one.
    """
    quotas = _compute_quotas(size, speeds)
    floors = [int(quota + ROUNDING) for quota in quotas]
    choices = [
        range(low, low + 1 if quota - low < ROUNDING else low + 2)
        for low, quota in zip(floors, quotas, strict=True)
    ]
    workers = iter(choices)
    machines = [list(islice(workers, count)) for count in nodes or (len(choices),)]
    sums = [range(sum(c.start for c in some), sum(c.stop - 1 for c in some) + 1) for some in machines]
    spans = _divide((0, size), sums, size)
    return tuple(chain.from_iterable(map(partial(_divide, size=size), spans, machines)))


def _divide(whole: Span, choices: Sequence[range], size: int) -> tuple[Span, ...]:
    """Divide a span into contiguous parts of allowed lengths, with the fewest nodes of the tree in total.

    That is dynamic programming over the borders of the parts.

    Args:
        whole: the span.
        choices: the lengths that each part may have.
        size: V.
    """
    first, last = whole
    # cheapest[p]: (nodes, parts) of the cheapest division that ends at p so far.
    cheapest: dict[int, tuple[int, tuple[Span, ...]]] = {first: (0, ())}
    for lengths in choices:
        after: dict[int, tuple[int, tuple[Span, ...]]] = {}
        for start, (nodes, parts) in cheapest.items():
            for length in lengths:
                stop = start + length
                if stop > last:
                    break
                cost = nodes + len(cover(range(start, stop), size))
                if stop not in after or cost < after[stop][0]:
                    after[stop] = (cost, (*parts, (start, stop)))
        cheapest = after
    return cheapest[last][1]


def _compute_quotas(size: int, speeds: tuple[float, ...]) -> list[float]:
    """Return quotas in proportion to speed, after each worker too slow for one rank has got one."""
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
    size: int, assigned: Mapping[int, frozenset[int]], speeds: Mapping[int, float]
) -> dict[int, tuple[Span, ...]]:
    """Assign the virtual ranks that no worker has, so that all workers finish at about the same time.

    Args:
        size: V.
        assigned: the virtual ranks that each worker has computed, or computes in any case.
        speeds: the speeds of the workers that may get more; others keep what they have.

    Returns:
        The additional virtual ranks of each worker that gets any.
    """
    taken = frozenset[int]().union(*assigned.values())
    missing = [rank for rank in range(size) if rank not in taken]
    load = {worker: float(len(assigned.get(worker, ()))) for worker in speeds}
    counts = dict.fromkeys(speeds, 0)
    for _ in missing:
        # The worker that would finish first with one more; the order of the members breaks ties.
        worker = min(speeds, key=lambda w: (load[w] + 1) / speeds[w])
        load[worker] += 1
        counts[worker] += 1
    added: dict[int, tuple[Span, ...]] = {}
    start = 0
    for worker, count in counts.items():
        if count:
            added[worker] = find_spans(missing[start : start + count])
            start += count
    return added


def assign_ranks(
    size: int,
    speeds: Mapping[int, float],
    nodes: Mapping[int, str],
    assigned: Mapping[int, frozenset[int]],
    known: frozenset[int],
    together: int = 1,
    computable: Mapping[int, frozenset[int]] | None = None,
) -> dict[int, frozenset[int]]:
    """Return all virtual ranks of each member: those that it has, and its part of the others.

    Args:
        size: V.
        speeds: the speeds of the members, in their order.
        nodes: the node of each member.
        assigned: the virtual ranks that each member has computed, or computes in any case.
        known: the virtual ranks that no member needs to compute, because their results are known.
        together: the number of neighbouring virtual ranks that a member computes at once; it divides V, and
            the assigned ones come in such groups.
        computable: the virtual ranks that each member may compute; None: all. One that no member may compute
            is assigned to none.
    """
    if computable is not None:
        return _assign_bound_ranks(size, speeds, assigned, known, computable)
    if together > 1:
        groups = assign_ranks(
            size // together,
            speeds,
            nodes,
            {worker: _find_groups(ranks, together) for worker, ranks in assigned.items()},
            _find_groups(known, together),
        )
        return {
            worker: expand_spans((group * together, (group + 1) * together) for group in some)
            for worker, some in groups.items()
        }
    if not (any(assigned.values()) or known):
        counts = tuple(len(list(mates)) for _, mates in groupby(nodes[worker] for worker in speeds))
        shares = assign_shares(size, tuple(speeds.values()), counts)
        return {worker: expand_spans((share,)) for worker, share in zip(speeds, shares, strict=True)}
    missing = assign_missing(size, {**assigned, FRESH: known}, speeds)
    return {
        worker: assigned.get(worker, frozenset()) | expand_spans(missing.get(worker, ())) for worker in speeds
    }


def _assign_bound_ranks(
    size: int,
    speeds: Mapping[int, float],
    assigned: Mapping[int, frozenset[int]],
    known: frozenset[int],
    computable: Mapping[int, frozenset[int]],
) -> dict[int, frozenset[int]]:
    """Assign virtual ranks that only some members may compute, those with the fewest such members first."""
    ranks = {worker: assigned.get(worker, frozenset()) for worker in speeds}
    able = [tuple(worker for worker in speeds if rank in computable[worker]) for rank in range(size)]
    for workers in sorted(dict.fromkeys(able), key=len):
        if workers:
            others = frozenset(rank for rank in range(size) if able[rank] != workers)
            fixed = {**ranks, FRESH: known | others}
            missing = assign_missing(size, fixed, {worker: speeds[worker] for worker in workers})
            ranks |= {worker: ranks[worker] | expand_spans(spans) for worker, spans in missing.items()}
    return ranks


def _find_groups(ranks: frozenset[int], together: int) -> frozenset[int]:
    """Return the numbers of the groups of neighbouring virtual ranks that are complete."""
    counts = Counter(rank // together for rank in ranks)
    return frozenset(group for group, count in counts.items() if count == together)
