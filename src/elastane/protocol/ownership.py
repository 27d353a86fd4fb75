"""Owners and backups of blocks, and the transfers that follow when they change."""

from collections.abc import Mapping, Sequence
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
    owned = dict.fromkeys(workers, 0)
    kept = dict.fromkeys(workers, 0)
    order = {worker: i for i, worker in enumerate(workers)}
    chosen: list[list[int]] = [[] for _ in range(blocks)]

    def has(worker: int, block: int) -> bool:
        return block in held.get(worker, ())

    for block in range(blocks):
        start = block * len(workers) // blocks
        candidates = sorted(
            (worker for worker in workers if owned[worker] < own_limit),
            key=lambda w: (not has(w, block), owned[w], (order[w] - start) % len(workers)),
        )
        owner = candidates[0]
        owned[owner] += 1
        kept[owner] += 1
        chosen[block].append(owner)
    for _ in range(copies - 1):
        for block in range(blocks):
            free = [worker for worker in workers if worker not in chosen[block]]
            within = [worker for worker in free if kept[worker] < hold_limit] or free
            first = order[chosen[block][0]]
            backup = min(
                within,
                key=lambda w: (not has(w, block), kept[w], (order[w] - first) % len(workers)),
            )
            kept[backup] += 1
            chosen[block].append(backup)
    return tuple(tuple(holders) for holders in chosen)


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
