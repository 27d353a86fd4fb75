"""The bytes of a step between workers and between nodes, and the partial sums that a worker holds; pure.

Both follow from the decisions of the protocol, so a plan counts what a run does: each worker sends its
partial sums of a block to the block's owner, the owner sends the sum to the other holders, and the new values
to the workers that hold no copy. With ``--transport shared`` the workers read these bytes from shared memory.
"""

from collections.abc import Callable, Sequence

import msgspec

from elastane.run.protocol.layout import cut_blocks
from elastane.run.protocol.ownership import choose_holders, spread_blocks
from elastane.run.protocol.shares import assign_shares
from elastane.run.protocol.tree import Span, cover, find_sibling


class StepTraffic(msgspec.Struct, frozen=True):
    """What the workers send to each other in one step.

    Args:
        partial_sums_bytes: of all workers together, to the owners of blocks.
        sums_bytes: from the owners to the other holders.
        published_bytes: new values, from the owners to workers without a copy.
        largest_bytes: the most that one worker sends or receives.
    """

    partial_sums_bytes: int
    sums_bytes: int
    published_bytes: int
    largest_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.partial_sums_bytes + self.sums_bytes + self.published_bytes


def count_traffic(
    sections: Sequence[tuple[int, int]], virtual_ranks: int, workers: int, copies: int | None
) -> StepTraffic:
    """Return the traffic of a step in which nothing else happens.

    Args:
        sections: of the flat state: the number of elements, and the bytes of each.
        virtual_ranks: V, at least the number of workers.
        workers: equally fast.
        copies: of the optimizer state; None: all.
    """
    blocks = cut_blocks([elements for elements, _ in sections])
    owners, holders = _assign_blocks(len(blocks), workers, copies)
    parts = [len(cover(range(*share), virtual_ranks)) for share in divide_ranks(virtual_ranks, (workers,))]
    owned = [0] * workers
    sums = 0
    for block, owner, chosen in zip(blocks, owners, holders, strict=True):
        size = block.elements * sections[block.section][1]
        owned[owner] += size
        sums += (len(chosen) - 1) * size
    total, everyone = sum(owned), sum(parts)
    others = [total - own for own in owned]
    # Partial sums go to the owners. A holder gets the sum of each block, and any other worker its new value,
    # which is as large.
    sent = [part * other + (workers - 1) * own for part, other, own in zip(parts, others, owned, strict=True)]
    received = [
        (everyone - part) * own + other for part, other, own in zip(parts, others, owned, strict=True)
    ]
    partial_sums = sum(part * other for part, other in zip(parts, others, strict=True))
    return StepTraffic(partial_sums, sums, (workers - 1) * total - sums, max(*sent, *received))


class NodeTraffic(msgspec.Struct, frozen=True):
    """What the nodes of a run send to each other in one step.

    Args:
        total_bytes: that leave all nodes together.
        largest_bytes: the most that leave or enter one node.
    """

    total_bytes: int
    largest_bytes: int


class RoundWire(msgspec.Struct, frozen=True):
    """The bytes of the sums that cross between nodes in a round.

    Args:
        group: virtual ranks of which the sum is rounded.
        count_partial: returns the bytes of some elements of such a sum.
        count_complete: likewise of a complete sum.
    """

    group: int
    count_partial: Callable[[int], int]
    count_complete: Callable[[int], int]


def count_node_traffic(
    sections: Sequence[tuple[int, int]],
    virtual_ranks: int,
    node_workers: Sequence[int],
    copies: int | None,
    wire: RoundWire | None = None,
) -> NodeTraffic:
    """Return the traffic between nodes in a step in which nothing else happens; see `count_traffic`.

    The workers of a node merge their partial sums before these leave it, and a whole sum, or a new value,
    enters each node once, see `elastane.run.protocol.relays`. In a round, sums of groups of virtual ranks and
    complete sums have fewer bytes; new values, which workers without a copy of the optimizer state get, and
    all other partial sums have not.

    Args:
        wire: of a round.
    """
    nodes = [str(node) for node, count in enumerate(node_workers) for _ in range(count)]
    blocks = cut_blocks([elements for elements, _ in sections])
    owners, _ = _assign_blocks(len(blocks), len(nodes), copies, nodes)
    ranks: dict[str, list[int]] = {}
    for node, share in zip(nodes, divide_ranks(virtual_ranks, node_workers), strict=True):
        ranks.setdefault(node, []).extend(range(*share))
    parts = {node: cover(some, virtual_ranks) for node, some in ranks.items()}
    rounded = {
        node: sum(wire is not None and stop - start == wire.group for start, stop in spans)
        for node, spans in parts.items()
    }
    full = {node: len(spans) - rounded[node] for node, spans in parts.items()}
    # Of the blocks of each node: the bytes in full, as rounded partial sums, and as complete sums.
    owned, short, complete = (dict.fromkeys(parts, 0) for _ in range(3))
    for block, owner in zip(blocks, owners, strict=True):
        size, node = sections[block.section][1], nodes[owner]
        owned[node] += block.elements * size
        short[node] += block.elements * size if wire is None else wire.count_partial(block.elements)
        if wire is None or (copies is not None and copies < len(nodes)):
            complete[node] += block.elements * size
        else:
            complete[node] += wire.count_complete(block.elements)
    sent, received = list[int](), list[int]()
    for node in parts:
        others = [other for other in parts if other != node]
        sent.append(
            sum(full[node] * owned[other] + rounded[node] * short[other] for other in others)
            + len(others) * complete[node]
        )
        received.append(
            sum(full[one] * owned[node] + rounded[one] * short[node] + complete[one] for one in others)
        )
    return NodeTraffic(sum(sent), max(*sent, *received))


def count_held_bytes(sections: Sequence[tuple[int, int]], workers: int, copies: int | None) -> int:
    """Return the bytes in the blocks of which one worker keeps the optimizer state, at most."""
    blocks = cut_blocks([elements for elements, _ in sections])
    held = [0] * workers
    _, holders = _assign_blocks(len(blocks), workers, copies)
    for block, chosen in zip(blocks, holders, strict=True):
        for worker in chosen:
            held[worker] += block.elements * sections[block.section][1]
    return max(held)


def _assign_blocks(
    blocks: int, workers: int, copies: int | None, nodes: Sequence[str] = ()
) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
    """Return the owner and the holders of each block, as in a run that starts with these workers."""
    if copies is None:
        return spread_blocks(blocks, range(workers)), [range(workers)] * blocks
    holders = choose_holders(blocks, range(workers), copies, {}, dict(enumerate(nodes)))
    return [chosen[0] for chosen in holders], holders


def divide_ranks(virtual_ranks: int, node_workers: Sequence[int]) -> tuple[Span, ...]:
    """Return the virtual ranks of equally fast workers, by the number of workers on each node."""
    return assign_shares(virtual_ranks, (1.0,) * sum(node_workers), tuple(node_workers))


def count_slots(share: Span, virtual_ranks: int) -> int:
    """Return the most partial sums that a worker holds at once while it computes its share, in order."""
    nodes: list[Span] = []
    most = 0
    rank, stop = share
    while rank < stop:
        node = (rank, rank + 1)
        if rank + 1 < stop and find_sibling(node, virtual_ranks) == (rank + 1, rank + 2):
            # Two siblings go into one slot together.
            node = (rank, rank + 2)
        rank = node[1]
        if not nodes or find_sibling(node, virtual_ranks) != nodes[-1]:
            nodes.append(node)
            most = max(most, len(nodes))
        else:
            nodes[-1] = (nodes[-1][0], node[1])
        while len(nodes) > 1 and find_sibling(nodes[-1], virtual_ranks) == nodes[-2]:
            _, right_stop = nodes.pop()
            nodes[-1] = (nodes[-1][0], right_stop)
    return most
