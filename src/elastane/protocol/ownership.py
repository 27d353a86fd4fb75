"""Owners and backups of blocks, and the transfers that follow when they change."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Holders: TypeAlias = tuple[int, ...]
"""The workers that keep a block's optimizer state, the owner first."""


def spread_blocks(blocks: int, workers: Sequence[int]) -> tuple[int, ...]:
    """Return the worker that sums each block: even contiguous runs, in the order of the workers."""
    return tuple(workers[block * len(workers) // blocks] for block in range(blocks))


def choose_holders(
    blocks: int, workers: Sequence[int], copies: int, held: Mapping[int, frozenset[int]]
) -> tuple[Holders, ...]:
    """Choose the owner and the backups of each block: ``min(copies, len(workers))`` different workers.

    A worker that holds a block keeps it if the load stays even. So a change moves little, and any ``copies -
    1`` deaths leave a holder. No worker owns more than its even share, rounded up. The function does not
    exchange chosen backups, so a worker may hold one or two blocks more than its even share.

    Args:
        blocks: the number of blocks.
        workers: the members, in order.
        copies: the number of copies of each block, >= 1.
        held: the blocks that each worker holds now.
    """
    copies = min(copies, len(workers))
    own_limit = -(-blocks // len(workers))
    hold_limit = -(-blocks * copies // len(workers))
    # Workers are known by their place in the order from here on.
    present: list[list[int]] = [[] for _ in range(blocks)]
    for place, worker in enumerate(workers):
        for block in held.get(worker, ()):
            if block < blocks:  # the last unit is the rest of the state
                present[block].append(place)
    owned, kept = _Loads(len(workers)), _Loads(len(workers))
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
            lightest = next(place for place in kept.rank(holders[0]) if place not in holders)
            keepers = [place for place in places if place not in holders]
            if kept.counts[lightest] < hold_limit:
                keepers = [place for place in keepers if kept.counts[place] < hold_limit]
            backup = kept.choose(keepers, holders[0]) if keepers else lightest
            kept.add(backup)
            holders.append(backup)
    return tuple(tuple(workers[place] for place in holders) for holders in chosen)


class _Loads:
    """The number of blocks of each worker, by its place in the order."""

    def __init__(self, workers: int) -> None:
        self.counts = [0] * workers
        # The numbers of blocks that occur, in order, and the places that have each of them, in order.
        self._levels = [0]
        self._places: dict[int, list[int]] = {0: [*range(workers)]}

    def add(self, place: int) -> None:
        """Add a block to a worker."""
        level = self.counts[place]
        self._places[level].remove(place)
        self.counts[place] += 1
        if level + 1 not in self._places:
            insort(self._levels, level + 1)
        insort(self._places.setdefault(level + 1, []), place)
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
