"""Sums of gradients: workers announce partial sums, owners add them, holders copy whole sums.

On several nodes the partial sums of a node are merged there, and a whole sum crosses the wire once per node,
see `elastane.run.protocol.relays`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from elastane.run.protocol import messages
from elastane.run.protocol.actions import MergeSums, Reduce, TakeSums
from elastane.run.protocol.events import Reduced, SumsMerged, SumsTaken
from elastane.run.protocol.relays import choose_leader, choose_mates, choose_receivers
from elastane.run.protocol.transitions.reads import begin_read, end_read, is_current
from elastane.run.protocol.transitions.state import MemberState, RoundPhase

Parts: TypeAlias = dict[int, tuple[messages.PartialSum, ...]]
"""The partial sums of a block, by worker."""


def announce_sums(me: MemberState) -> None:
    """Announce final partial sums of this worker: to their owners, or to the leaders of its node."""
    round_, generation = me.round, me.generation
    if round_.phase < RoundPhase.ASSIGNED or generation is None:
        return
    old = frozenset[int]().union(*me.rooted_at.values()) if round_.resumed else frozenset[int]()
    # A worker that computes all virtual ranks of its node has nothing to merge.
    alone, nodes = round_.node_ranks == len(round_.assigned), me.nodes
    groups: dict[tuple[int, tuple[messages.PartialSum, ...]], list[int]] = {}
    for block, parts in sorted(round_.unannounced.items()):
        if block not in old:
            owner = me.owners[block]
            receiver = owner if alone else choose_leader(me.worker, owner, nodes, block)
            groups.setdefault((receiver, parts), []).append(block)
    round_.unannounced.clear()
    for (receiver, parts), blocks in groups.items():
        if receiver == me.worker:
            round_.add_ready(me.worker, blocks, parts)
        else:
            _send_partial_sums(me, receiver, blocks, parts)


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
    led = sorted(block for block in round_.unexamined if me.owners[block] != me.worker)
    round_.unexamined.difference_update(led)
    complete = [
        block
        for block in led
        if block not in round_.merged and _count_ranks(round_.ready[block]) == round_.node_ranks
    ]
    round_.merged.update(complete)
    for parts, blocks in _group_by_parts(round_.ready, complete):
        begin_read(me, MergeSums(generation.number, blocks, parts))


def _group_by_parts(ready: Mapping[int, Parts], blocks: Iterable[int]) -> list[tuple[Parts, tuple[int, ...]]]:
    """Group blocks that have the same parts, so that one message announces their sums."""
    groups: dict[tuple[tuple[int, tuple[messages.PartialSum, ...]], ...], list[int]] = {}
    for block in blocks:
        groups.setdefault(tuple(sorted(ready[block].items())), []).append(block)
    return [(dict(parts), tuple(some)) for parts, some in groups.items()]


def send_merged_sums(me: MemberState, merged: SumsMerged) -> None:
    """Announce merged sums of this worker's node to the owners; those of an older generation are void."""
    end_read(me, merged.generation)
    if not is_current(me, merged.generation):
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
    round_, generation = me.round, me.generation
    if round_.phase < RoundPhase.COMPUTING or generation is None:
        return
    if round_.entered is None or round_.entered.kind != "train":
        return
    # `merge_sums` has examined all blocks that this worker does not own.
    complete = [
        block
        for block in sorted(round_.unexamined - round_.rooted - round_.rooting)
        if _count_ranks(round_.ready[block]) >= round_.entered.size
    ]
    round_.unexamined.clear()
    round_.rooting.update(complete)
    for parts, blocks in _group_by_parts(round_.ready, complete):
        begin_read(me, Reduce(generation.number, blocks, parts))


def finish_reduction(me: MemberState, reduced: Reduced) -> None:
    """Announce whole sums of this worker; later generations learn of them by its status."""
    if _take_root(me, reduced.generation, reduced.blocks):
        send_sums_ready(me, reduced.blocks)


def _take_root(me: MemberState, generation: int, blocks: Sequence[int]) -> bool:
    """Record the end of reads that make whole sums; return whether to announce these."""
    me.round.rooting.difference_update(blocks)
    if end_read(me, generation):
        me.round.rooted.update(blocks)
    return is_current(me, generation)


def take_sums(me: MemberState) -> None:
    """Copy whole sums from their owners, after this worker has applied its sums of the last round."""
    round_, generation = me.round, me.generation
    if round_.phase < RoundPhase.COMPUTING or generation is None:
        return
    by_sender: dict[int, list[int]] = {}
    for block, sender in round_.available_sums.items():
        if block not in round_.rooted and block not in round_.rooting:
            by_sender.setdefault(sender, []).append(block)
    round_.available_sums.clear()
    for sender, blocks in by_sender.items():
        round_.rooting.update(blocks)
        begin_read(me, TakeSums(generation.number, sender, tuple(blocks)))


def finish_taking_sums(me: MemberState, taken: SumsTaken) -> None:
    """Hand whole sums on, if this worker relays them."""
    if _take_root(me, taken.generation, taken.blocks):
        relay_sums(me, taken.peer, taken.blocks)


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
