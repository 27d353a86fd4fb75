"""The legal sizes of a job, in workers.

A user may write them, as a list or with a step. Otherwise a size above one node is legal if it fills whole
nodes, and every size must have a smaller largest share of the job's virtual ranks than the one below: a step
lasts as long as the largest share, so with 8 virtual ranks a fifth worker brings nothing. Shares may be
unequal: the measured speed of a size decides whether its workers are worth their devices.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

from elastane.cluster.nouns.jobs import ElasticPolicy

Sizes: TypeAlias = tuple[Sequence[int], ...]
"""Legal sizes in ascending order, as one or more sequences, none of them empty."""


@lru_cache(maxsize=2**16)
def list_legal_sizes(policy: ElasticPolicy, node_workers: int, virtual_ranks: int) -> Sizes:
    """Return the legal sizes of a job; the smallest is its minimum.

    Args:
        node_workers: workers that fit on one node.
        virtual_ranks: of the job, for each process of a worker; 0: not known.
    """
    low, high = policy.min_replicas, policy.max_replicas
    if policy.replica_discrete_values:
        return (policy.replica_discrete_values,)
    if policy.replica_increment_step is not None:
        return (range(low, high + 1, policy.replica_increment_step),)
    if virtual_ranks:
        return (tuple(_iterate_faster_sizes(low, high, node_workers, virtual_ranks)),)
    on_one_node = range(low, max(low, min(high, node_workers)) + 1)
    whole_nodes = range(_round_up(on_one_node[-1] + 1, node_workers), high + 1, node_workers)
    return (on_one_node, whole_nodes) if whole_nodes else (on_one_node,)


def find_smallest_size(sizes: Sizes) -> int:
    """Return the smallest legal size: the minimum that a job asks for."""
    return sizes[0][0]


def find_largest_size(sizes: Sizes) -> int:
    return sizes[-1][-1]


def round_down_to_size(sizes: Sizes, at_most: int) -> int:
    """Return the largest legal size up to ``at_most``; 0 if there is none."""
    for run in reversed(sizes):
        if run[0] <= at_most:
            return run[bisect_right(run, at_most) - 1]
    return 0


def find_next_size(sizes: Sizes, workers: int) -> int | None:
    """Return the next legal size above ``workers``; None if there is none."""
    for run in sizes:
        if run[-1] > workers:
            return run[bisect_right(run, workers)]
    return None


def _iterate_faster_sizes(low: int, high: int, node_workers: int, virtual_ranks: int) -> Iterator[int]:
    """Yield ``low``, and each larger size with a smaller largest share than those below it."""
    size = low
    while size <= high:
        yield size
        largest_share = -(-virtual_ranks // size)
        if largest_share == 1:
            return
        # With fewer workers than this, the largest share stays the same.
        faster = -(-virtual_ranks // (largest_share - 1))
        # Each virtual rank on a worker of its own is as fast as a job can be, whether nodes are full or not.
        size = min(virtual_ranks, _round_up(faster, node_workers)) if faster > node_workers else faster


def _round_up(workers: int, node_workers: int) -> int:
    """Return the workers on as many whole nodes as ``workers`` need."""
    return -(-workers // node_workers) * node_workers
