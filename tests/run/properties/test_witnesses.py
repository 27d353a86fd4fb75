"""Every copy of the state is compared with another one after some digests."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.nouns.membership import Generation, Member
from elastane.run.protocol.commit import find_divergence
from elastane.run.protocol.layout import Layout
from elastane.run.protocol.messages import BEGINNING, Status, Vote
from elastane.run.protocol.roles import assign_roles
from elastane.run.protocol.transitions.audits import find_audited_blocks, find_witnessed_blocks
from elastane.run.protocol.transitions.state import MemberState
from elastane.run.protocol.tree import find_spans

EVERY = 5


def make_members(workers, blocks, copies):
    """Return the members of a generation, each with all state that it should hold."""
    units = blocks + 1
    layout = Layout(
        virtual_ranks=workers,
        blocks=blocks,
        units=units,
        unit_bytes=(1,) * units,
        copies=copies,
        digest_every=EVERY,
        compared=True,
    )
    generation = Generation(1, 1, tuple(Member(worker, "", 0) for worker in range(workers)), planned=False)
    everything = find_spans(layout.everything)
    statuses = {w: Status(generation=1, worker=w, committed=1, held=everything) for w in range(workers)}
    found = []
    for worker in range(workers):
        me = MemberState(worker, layout)
        me.generation, me.roles = generation, assign_roles(layout, generation, statuses)
        found.append(me)
    return found


def set_outcome(me, step, workers):
    me.outcome = msgspec.structs.replace(BEGINNING, step=step, complete=tuple(range(workers)))
    return me


@given(st.integers(1, 6), st.integers(1, 9), st.none() | st.integers(1, 4))
def test_each_copy_is_digested_by_an_auditor_or_a_witness(workers, blocks, copies):
    states = make_members(workers, blocks, copies)
    # A worker without the optimizer state of a block still has its values.
    seen = {block: set() for block in range(blocks)}
    for number in range(1, workers + 1):
        for me in states:
            set_outcome(me, number * EVERY, workers)
        for block in range(blocks):
            auditors = [me.worker for me in states if block in find_audited_blocks(me)]
            witnesses = [me.worker for me in states if block in find_witnessed_blocks(me)]
            assert len(auditors) == 1
            assert len(witnesses) == (workers > 1)
            assert not {*auditors} & {*witnesses}
            seen[block] |= {*auditors, *witnesses}
    assert all(len(workers_) == workers for workers_ in seen.values())


def test_a_copy_without_optimizer_state_is_compared_by_values():
    def votes(*pairs):
        return {w: Vote(generation=1, round=2, leaves=(), digests={0: pair}) for w, pair in enumerate(pairs)}

    assert not find_divergence(7, votes(("a", ""), ("a", "s"), ("a", "")))
    assert "parameters" in find_divergence(7, votes(("b", ""), ("a", "s")))
    assert "optimizer state" in find_divergence(7, votes(("a", "s"), ("a", ""), ("a", "t")))


@given(st.dictionaries(st.integers(0, 3), st.dictionaries(st.integers(0, 3), st.sampled_from("ab"))))
def test_different_digests_of_a_block_stop_the_round(digests):
    votes = {
        worker: Vote(generation=1, round=2, leaves=(), digests={b: (text, "s") for b, text in found.items()})
        for worker, found in digests.items()
    }
    texts = {block: {found[block] for found in digests.values() if block in found} for block in range(4)}
    different = [block for block, some in texts.items() if len(some) > 1]
    why = find_divergence(7, votes)
    assert bool(why) == bool(different)
    assert not why or int(why.rsplit(" ", 1)[1]) in different
