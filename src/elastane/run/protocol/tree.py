"""The fixed binary tree over virtual ranks, which gives the order of all sums of gradients.

A node is an aligned range ``[k * 2**j, (k + 1) * 2**j)``, cut off at V. On any worker its sum is the sum of
its left half plus the sum of its right half, so the bits of the root depend on V alone.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeAlias

import msgspec

Span: TypeAlias = tuple[int, int]
"""The virtual ranks ``[start, stop)``."""


def find_spans(virtual_ranks: Iterable[int]) -> tuple[Span, ...]:
    """Return the fewest spans that hold exactly these virtual ranks, in order."""
    spans: list[list[int]] = []
    for rank in sorted(virtual_ranks):
        if spans and spans[-1][1] == rank:
            spans[-1][1] = rank + 1
        else:
            spans.append([rank, rank + 1])
    return tuple((start, stop) for start, stop in spans)


def expand_spans(spans: Iterable[Span]) -> frozenset[int]:
    """Return all virtual ranks in the spans."""
    return frozenset(rank for start, stop in spans for rank in range(start, stop))


def find_parent(node: Span, size: int) -> Span:
    """Return the parent of ``node`` in the tree over ``range(size)``; the root is its own parent.

    At the ragged end a node and its parent can hold the same ranks; they count as one.
    """
    width = 1
    while width < node[1] - node[0]:
        width *= 2
    while True:
        width *= 2
        start = node[0] // width * width
        parent = (start, min(start + width, size))
        if parent != node or parent == (0, size):
            return parent


def find_sibling(node: Span, size: int) -> Span | None:
    """Return the other half of the parent; None for the root."""
    parent = find_parent(node, size)
    if parent == node:
        return None
    return (node[1], parent[1]) if parent[0] == node[0] else (parent[0], node[0])


def cover(virtual_ranks: Iterable[int], size: int) -> tuple[Span, ...]:
    """Return the fewest nodes of the tree over ``range(size)`` that hold exactly these virtual ranks."""
    stack: list[Span] = []
    for rank in sorted(virtual_ranks):
        stack.append((rank, rank + 1))
        while len(stack) > 1 and find_sibling(stack[-1], size) == stack[-2]:
            right, left = stack.pop(), stack.pop()
            stack.append((left[0], right[1]))
    return tuple(stack)


class Merge(msgspec.Struct, frozen=True):
    """Add the part numbered ``source`` into the one numbered ``target``."""

    target: int
    source: int


class MergePlan(msgspec.Struct, frozen=True):
    """Additions, in order, and what they leave.

    Args:
        merges: the additions; numbers are positions in a sequence of parts.
        left: the virtual ranks of each part that is left, with the number of the part that holds their sum.
    """

    merges: tuple[Merge, ...]
    left: tuple[tuple[tuple[Span, ...], int], ...]


def merge_siblings(parts: Sequence[Span], size: int) -> MergePlan:
    """Plan to merge siblings of the tree over ``range(size)`` until none are left.

    Wherever these additions happen, the sum of a node has the same bits.

    Args:
        parts: different nodes of the tree, in any order.
        size: V, the number of virtual ranks.
    """
    order = sorted(range(len(parts)), key=lambda i: parts[i])
    merges: list[Merge] = []
    stack: list[tuple[Span, int]] = []
    for i in order:
        stack.append((parts[i], i))
        while len(stack) > 1 and find_sibling(stack[-1][0], size) == stack[-2][0]:
            (right, source), (left, target) = stack.pop(), stack.pop()
            merges.append(Merge(target, source))
            stack.append(((left[0], right[1]), target))
    return MergePlan(tuple(merges), tuple(((node,), number) for node, number in stack))


def plan_merges(parts: Sequence[Span], size: int) -> tuple[Merge, ...]:
    """Return the additions that sum ``parts``, nodes that tile ``range(size)``, in the order of the tree.

    The last ``target`` holds the root. Numbers are positions in ``parts``.

    Raises:
        ValueError: the parts do not tile the virtual ranks, or a part is not a node.
    """
    plan = merge_siblings(parts, size)
    if [spans for spans, _ in plan.left] != [((0, size),)]:
        raise ValueError(f"{tuple(parts)} are not nodes that tile {size} virtual ranks")
    return plan.merges


def fold(parts: Sequence[Span]) -> tuple[Merge, ...]:
    """Return the additions of ``--convergence fast``: every part into the first, in order of first rank."""
    first, *rest = sorted(range(len(parts)), key=lambda i: parts[i])
    return tuple(Merge(first, i) for i in rest)


def fold_node(parts: Sequence[tuple[Span, ...]]) -> MergePlan:
    """Plan the additions of ``--convergence fast`` on one node of several: one part is left.

    Args:
        parts: the virtual ranks of each part, at least one part.
    """
    merges = fold([spans[0] for spans in parts])
    first = merges[0].target if merges else 0
    return MergePlan(merges, ((find_spans(expand_spans(chain.from_iterable(parts))), first),))
