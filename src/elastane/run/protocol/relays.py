"""What many workers of a node need, or have, crosses the wire once.

Down, one of them receives whole sums and new values and hands them on: the relay. Up, one of them merges the
partial sums of all and sends the result: the leader.
"""

from collections.abc import Mapping, Sequence


def choose_receivers(
    sender: int, wanting: Sequence[int], nodes: Mapping[int, str], item: int
) -> tuple[int, ...]:
    """Return the workers to which the first sender of an item sends it.

    These are the others of its node, and one of each other node: the relay, which sends the item on to the
    rest of its node. Different items have different relays.

    Args:
        sender: has the item.
        wanting: the workers that need it, in the order of the members.
        nodes: the node of each worker.
        item: the number of the item: a block, or a unit of values.
    """
    by_node: dict[str, list[int]] = {}
    for worker in wanting:
        if worker != sender:
            by_node.setdefault(nodes[worker], []).append(worker)
    mates = by_node.pop(nodes[sender], [])
    return (*mates, *(some[item % len(some)] for some in by_node.values()))


def choose_mates(
    relay: int, sender: int, wanting: Sequence[int], nodes: Mapping[int, str]
) -> tuple[int, ...]:
    """Return the workers to which the receiver of an item sends it on: none if it came from its own node."""
    if nodes[relay] == nodes[sender]:
        return ()
    return tuple(worker for worker in wanting if worker != relay and nodes[worker] == nodes[relay])


def choose_leader(worker: int, owner: int, nodes: Mapping[int, str], block: int) -> int:
    """Return the worker that merges the partial sums of a block on a worker's node.

    That is the owner of the block on its own node. On each other node different blocks have different
    leaders.

    Args:
        nodes: the node of each worker, in the order of the members.
    """
    if nodes[owner] == nodes[worker]:
        return owner
    mates = [mate for mate, node in nodes.items() if node == nodes[worker]]
    return mates[block % len(mates)]
