"""Owners and backups of blocks, and the transfers that follow when they change."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

Holders: TypeAlias = tuple[int, ...]
"""The workers that keep a block's optimizer state: first the one that audits it and publishes its values."""

TOLERATED_BLOCKS = 2
"""How many blocks beyond its limit a worker may hold."""


def spread_blocks(blocks: int, workers: Sequence[int]) -> tuple[int, ...]:
    """Divide blocks among workers for audits and checkpoints: even contiguous runs, in their order."""
    return tuple(workers[block * len(workers) // blocks] for block in range(blocks))


def stripe_blocks(blocks: int, workers: Sequence[int]) -> tuple[int, ...]:
    """Return the worker that sums each block, if all hold all of them: they take turns.

    A backward pass finishes the blocks in order, so with contiguous runs one worker would do all additions at
    a time.
    """
    return tuple(workers[block % len(workers)] for block in range(blocks))


def choose_owners(holders: Sequence[Holders], workers: Sequence[int]) -> tuple[int, ...]:
    """Return the worker that sums each block: the one of its holders that has summed the fewest before.

    Args:
        holders: of each block.
        workers: the members, in order; among equals they take turns.
    """
    places = {worker: place for place, worker in enumerate(workers)}
    summed = dict.fromkeys(workers, 0)
    owners = []
    for block, some in enumerate(holders):
        first = block % len(workers)
        owner = min(some, key=lambda w: (summed[w], (places[w] - first) % len(workers)))
        summed[owner] += 1
        owners.append(owner)
    return tuple(owners)


def choose_holders(
    blocks: int,
    workers: Sequence[int],
    copies: int,
    held: Mapping[int, frozenset[int]],
    nodes: Mapping[int, str] = MappingProxyType({}),
) -> tuple[Holders, ...]:
    """Choose the owner and the backups of each block: ``min(copies, len(workers))`` different workers.

    Safety comes first: the holders of a block are on different nodes, or on all nodes if there are fewer than
    ``copies``. So any ``copies - 1`` lost workers, and any one lost node of several, leave a holder. An even
    load comes second, see `plan_loads`. A worker that holds a block keeps it if both allow it, so a change
    moves little. No worker owns more than its even share, rounded up; one may hold a few blocks more than its
    limit, because a move costs more than these do.

    Args:
        workers: the members, in order.
        copies: the number of copies of each block, >= 1.
        held: the blocks that each worker holds now.
        nodes: the node of each worker; the default is one node for all.
    """
    copies = min(copies, len(workers))
    own_limit = -(-blocks // len(workers))
    # Workers are known by their place in the order from here on.
    present: list[list[int]] = [[] for _ in range(blocks)]
    for place, worker in enumerate(workers):
        for block in held.get(worker, ()):
            if block < blocks:  # the last unit is the rest of the state
                present[block].append(place)
    node_of = [nodes.get(worker, "") for worker in workers]
    plan = plan_loads(blocks, copies, Counter(node_of))
    # A worker with a lower limit starts with that many blocks more, so that equal counts mean equal room.
    full = max(plan.limits.values())
    owned, kept = _Loads([0] * len(workers)), _Loads([full - plan.limits[node] for node in node_of])
    chosen: list[list[int]] = []
    for block in range(blocks):
        start = block * len(workers) // blocks
        keepers = [place for place in present[block] if owned.counts[place] < own_limit]
        owner = owned.choose(keepers, start) if keepers else next(owned.rank(start))
        owned.add(owner)
        kept.add(owner)
        chosen.append([owner])
    for _ in range(copies - 1):
        for holders, places in zip(chosen, present, strict=True):
            fitting = plan.find_next_nodes({node_of[place] for place in holders})
            others = (place for place in kept.rank(holders[0]) if place not in holders)
            lightest = next(place for place in others if node_of[place] in fitting)
            keepers = [place for place in places if place not in holders and node_of[place] in fitting]
            if kept.counts[lightest] < full:
                keepers = [place for place in keepers if kept.counts[place] < full]
            backup = kept.choose(keepers, holders[0]) if keepers else lightest
            kept.add(backup)
            holders.append(backup)
    _move_surplus(chosen, kept, full, plan, node_of)
    return tuple(tuple(workers[place] for place in holders) for holders in chosen)


def _move_surplus(
    chosen: list[list[int]], kept: "_Loads", full: int, plan: "LoadPlan", node_of: Sequence[str]
) -> None:
    """Move backups from the workers far beyond their limit to workers with room.

    A worker with room may own or hold all blocks that came last, so that these went to the others.
    """
    most = full + TOLERATED_BLOCKS
    if max(kept.counts) <= most:
        return
    for holders in chosen:
        for i, place in enumerate(holders[1:], start=1):
            if kept.counts[place] > most:
                fitting = plan.find_next_nodes({node_of[other] for other in holders if other != place})
                free = (other for other in kept.rank(place) if other not in holders)
                lightest = next((other for other in free if node_of[other] in fitting), place)
                if kept.counts[lightest] < full:
                    kept.add(place, -1)
                    kept.add(lightest)
                    holders[i] = lightest


class LoadPlan(msgspec.Struct, frozen=True):
    """The most even load of the workers that keeps the copies of each block on different nodes.

    Args:
        limits: how many blocks a worker of each node should hold at most.
        everywhere: the nodes that need a copy of every block.
    """

    limits: dict[str, int]
    everywhere: frozenset[str]

    def find_next_nodes(self, used: set[str]) -> frozenset[str]:
        """Return the nodes on which the next copy of a block may be, after those on ``used`` nodes."""
        every = frozenset(self.limits)
        return self.everywhere - used or every - used or every


def plan_loads(blocks: int, copies: int, sizes: Mapping[str, int]) -> LoadPlan:
    """Plan the load of each node.

    It is even over all workers unless that puts two copies of a block on one node, or none on a node although
    there are as many copies. Then the workers of a large node hold fewer blocks, or those of a small node
    more.

    Args:
        copies: the number of copies of each block, at most the number of workers.
        sizes: the number of workers on each node.
    """
    scarce = copies > len(sizes)
    # The nodes that hold one copy of every block: too large for more, or too small for less.
    single: set[str] = set()
    while True:
        left = {node: size for node, size in sizes.items() if node not in single}
        rest, room = blocks * (copies - len(single)), sum(left.values())
        surplus = {node: size * rest - blocks * room for node, size in left.items()}
        wrong = {node for node, more in surplus.items() if (more < 0 if scarce else more > 0)}
        if not wrong:
            break
        single |= wrong
    limits = {n: -(-blocks // size) if n in single else -(-rest // room) for n, size in sizes.items()}
    exact = {node for node, more in surplus.items() if more == 0}
    return LoadPlan(limits, frozenset(sizes if scarce else single | exact))


class _Loads:
    """The number of blocks of each worker, by its place in the order."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts
        # The numbers of blocks that occur, in order, and the places that have each of them, in order.
        self._levels = sorted(set(counts))
        self._places: dict[int, list[int]] = {level: [] for level in self._levels}
        for place, level in enumerate(counts):
            self._places[level].append(place)

    def add(self, place: int, blocks: int = 1) -> None:
        """Add blocks to a worker, or take some away."""
        level = self.counts[place]
        self._places[level].remove(place)
        self.counts[place] += blocks
        if level + blocks not in self._places:
            insort(self._levels, level + blocks)
        insort(self._places.setdefault(level + blocks, []), place)
        if not self._places[level]:
            del self._places[level]
            self._levels.remove(level)

    def rank(self, start: int) -> Iterator[int]:
        """Yield the workers with the fewest blocks first; among equals, those that follow ``start`` first."""
        for level in self._levels:
            places = self._places[level]
            first = bisect_left(places, start)
            yield from places[first:]
            yield from places[:first]

    def choose(self, places: Sequence[int], start: int) -> int:
        """Return the one of these workers that `rank` yields first."""
        return min(places, key=lambda place: (self.counts[place], (place - start) % len(self.counts)))


def choose_senders(
    wanted: Mapping[int, Sequence[int]], held: Mapping[int, frozenset[int]]
) -> dict[int, dict[int, tuple[int, ...]]]:
    """Choose the sender of each block that a worker wants, with even work for the senders.

    Returns:
        Blocks by receiver and sender. Blocks without another holder are missing: their state is lost.
    """
    sent = dict.fromkeys(held, 0)
    plan: dict[int, dict[int, list[int]]] = {}
    for receiver in wanted:
        for block in wanted[receiver]:
            senders = [worker for worker in held if worker != receiver and block in held[worker]]
            if not senders:
                continue
            sender = min(senders, key=lambda w: sent[w])
            sent[sender] += 1
            plan.setdefault(receiver, {}).setdefault(sender, []).append(block)
    return {
        receiver: {sender: tuple(blocks) for sender, blocks in by_sender.items()}
        for receiver, by_sender in plan.items()
    }
