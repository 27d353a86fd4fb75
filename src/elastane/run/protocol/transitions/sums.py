"""Sums of gradients: workers announce partial sums, owners add them, holders copy whole sums.

On several nodes the partial sums of a node are merged there, and a whole sum crosses the wire once per node,
see `elastane.run.protocol.relays`.
"""

from collections.abc import Mapping, Sequence

from elastane.run.protocol import messages
from elastane.run.protocol.actions import MergeSums, Reduce, TakeSums
from elastane.run.protocol.events import SumsMerged
from elastane.run.protocol.relays import choose_leader, choose_mates, choose_receivers
from elastane.run.protocol.transitions.state import MemberState, RoundPhase


def announce_sums(me: MemberState) -> None:
    """Announce final partial sums of this worker: to their owners, or to the leaders of its node."""
    round_, generation = me.round, me.generation
    if round_.phase < RoundPhase.ASSIGNED or generation is None:
        return
    old = frozenset[int]().union(*me.rooted_at.values()) if round_.resumed else frozenset[int]()
    # A worker that computes all virtual ranks of its node has nothing to merge.
    alone, nodes = round_.node_ranks == len(round_.assigned), me.nodes
    by_receiver: dict[int, list[int]] = {}
    for block in sorted(round_.final - round_.announced):
        round_.announced.add(block)
        if block not in old:
            owner = me.owners[block]
            receiver = owner if alone else choose_leader(me.worker, owner, nodes, block)
            by_receiver.setdefault(receiver, []).append(block)
    for receiver, blocks in by_receiver.items():
        if receiver == me.worker:
            for block in blocks:
                round_.ready.setdefault(block, {})[me.worker] = round_.parts
        else:
            _send_partial_sums(me, receiver, blocks, round_.parts)


def _send_partial_sums(
    me: MemberState, receiver: int, blocks: Sequence[int], parts: tuple[messages.PartialSum, ...]
) -> None:
    assert me.generation is not None, "only members of a generation sum"
    me.send(
        receiver,
        messages.PartialSumsReady(
            generation=me.generation.number, round=me.committed + 1, blocks=tuple(blocks), parts=parts
        ),
    )


def merge_sums(me: MemberState) -> None:
    """Merge the blocks that this worker leads, after all partial sums of its node are announced."""
    round_, generation = me.round, me.generation
    if round_.phase < RoundPhase.COMPUTING or generation is None:
        return
    # Blocks with the same parts are merged together, so that one message announces them.
    groups: dict[tuple[tuple[int, tuple[messages.PartialSum, ...]], ...], list[int]] = {}
    for block in sorted(round_.ready.keys() - round_.merged):
        by_worker = round_.ready[block]
        if me.owners[block] != me.worker and _count_ranks(by_worker) == round_.node_ranks:
            round_.merged.add(block)
            groups.setdefault(tuple(sorted(by_worker.items())), []).append(block)
    for parts, blocks in groups.items():
        me.actions.append(MergeSums(generation.number, tuple(blocks), dict(parts)))


def send_merged_sums(me: MemberState, merged: SumsMerged) -> None:
    """Announce merged sums of this worker's node to the owners; those of an older generation are void."""
    if me.generation is None or merged.generation != me.generation.number:
        return
    by_owner: dict[int, list[int]] = {}
    for block in merged.blocks:
        by_owner.setdefault(me.owners[block], []).append(block)
    for owner, blocks in by_owner.items():
        _send_partial_sums(me, owner, blocks, merged.parts)


def _count_ranks(by_worker: Mapping[int, Sequence[messages.PartialSum]]) -> int:
    return sum(stop - start for parts in by_worker.values() for p in parts for start, stop in p.spans)


def reduce_sums(me: MemberState) -> None:
    """Sum the blocks that this worker owns, after partial sums of all virtual ranks are announced."""
    round_ = me.round
    if round_.phase < RoundPhase.COMPUTING or round_.entered is None or round_.entered.kind != "train":
        return
    done: list[int] = []
    for block in sorted(round_.ready):
        if me.owners[block] != me.worker or block in round_.rooted:
            continue
        by_worker = round_.ready[block]
        if _count_ranks(by_worker) < round_.entered.size:
            continue
        round_.rooted.add(block)
        me.actions.append(Reduce((block,), dict(by_worker)))
        done.append(block)
    if done:
        send_sums_ready(me, tuple(done))


def take_sums(me: MemberState) -> None:
    """Copy whole sums from their owners, after this worker has applied its sums of the last round."""
    round_ = me.round
    if round_.phase < RoundPhase.COMPUTING:
        return
    by_sender: dict[int, list[int]] = {}
    for block, sender in round_.available_sums.items():
        if block not in round_.rooted:
            by_sender.setdefault(sender, []).append(block)
    round_.available_sums.clear()
    for sender, blocks in by_sender.items():
        round_.rooted.update(blocks)
        me.actions.append(TakeSums(sender, tuple(blocks)))
        relay_sums(me, sender, blocks)


def send_sums_ready(me: MemberState, blocks: Sequence[int]) -> None:
    """Announce whole sums to the workers of this node that lack them, and to one of each other node."""
    nodes = me.nodes
    _announce(
        me, {block: choose_receivers(me.worker, _find_wanting(me, block), nodes, block) for block in blocks}
    )


def relay_sums(me: MemberState, sender: int, blocks: Sequence[int]) -> None:
    """Announce sums that this worker has taken from another node to the rest of its own node."""
    nodes = me.nodes
    _announce(
        me, {block: choose_mates(me.worker, sender, _find_wanting(me, block), nodes) for block in blocks}
    )


def _find_wanting(me: MemberState, block: int) -> tuple[int, ...]:
    """Return the holders of a block without its whole sum, in the order of the members."""
    assert me.generation is not None, "only members of a generation sum"
    return tuple(
        worker
        for worker in me.generation.workers
        if worker in me.holders[block] and not (me.round.resumed and block in me.rooted_at.get(worker, ()))
    )


def _announce(me: MemberState, receivers: Mapping[int, Sequence[int]]) -> None:
    assert me.generation is not None, "only members of a generation sum"
    for worker in me.generation.workers:
        theirs = tuple(block for block, some in receivers.items() if worker in some)
        if theirs:
            summed = messages.SumsReady(
                generation=me.generation.number, round=me.committed + 1, blocks=theirs
            )
            me.send(worker, summed)


def pass_on_sums(me: MemberState) -> None:
    """Announce whole sums of an earlier generation to members that lack them."""
    for block in sorted(me.round.rooted):
        if me.owners[block] == me.worker:
            send_sums_ready(me, (block,))
