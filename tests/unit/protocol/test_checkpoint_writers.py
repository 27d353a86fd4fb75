"""Who writes which block of a checkpoint, when storage refuses some members."""

from types import SimpleNamespace

import pytest

from elastane.protocol import messages
from elastane.protocol.actions import TakeSnapshot
from elastane.protocol.commit import compute_outcome
from elastane.protocol.layout import Layout
from elastane.protocol.transitions.checkpoints import choose_writers, retake_snapshot

BLOCKS = 4
SPREAD = (0, 0, 1, 1)


def member(
    worker=0, *, refused=(), complete=(0, 1, 2), copies=None, holders=((0, 1), (0, 1), (1, 2), (1, 2))
):
    """A member of three that has committed a round with this outcome."""
    layout = Layout(virtual_ranks=4, blocks=BLOCKS, units=5, unit_bytes=(1,) * 5, copies=copies)
    outcome = messages.RoundOutcome(
        **{name: getattr(messages.BEGINNING, name) for name in messages.BEGINNING.__struct_fields__}
        | {"complete": complete, "refused": refused, "step": 9}
    )
    auditors = SPREAD if copies is None else tuple(some[0] for some in holders)
    return SimpleNamespace(
        worker=worker,
        layout=layout,
        outcome=outcome,
        generation=SimpleNamespace(workers=(0, 1, 2)),
        roles=SimpleNamespace(auditors=auditors, holders=holders),
        holders=holders,
        step=9,
        ticket=5,
        actions=[],
        held=set(range(5)),
        behind=set(),
    )


def test_without_refusals_whoever_digests_a_block_writes_it():
    assert choose_writers(member()) == (0, 0, 1, 2)
    assert choose_writers(member(copies=2)) == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("refused", "copies", "expected"),
    [
        ((0,), None, (1, 1, 2, 2)),
        ((0, 1), None, (2, 2, 2, 2)),
        ((0,), 2, (1, 1, 1, 1)),
        ((1,), 2, (0, 0, 2, 2)),
        # Nobody else keeps the last two blocks: who does tries again.
        ((1, 2), 2, (0, 0, 1, 1)),
        ((0, 1, 2), None, (0, 0, 1, 2)),
    ],
)
def test_others_that_hold_a_block_write_it_for_those_that_were_refused(refused, copies, expected):
    for worker in range(3):
        assert choose_writers(member(worker, refused=refused, copies=copies)) == expected


def test_every_vote_that_was_refused_is_in_the_outcome():
    votes = {
        worker: messages.Vote(generation=1, round=1, leaves=(), refused=worker in {0, 2})
        for worker in (0, 1, 2)
    }
    assert compute_outcome(1, 1, {}, votes).refused == (0, 2)


def test_the_settled_state_is_copied_once_more_by_those_who_can():
    for worker, blocks in ((0, (0, 1)), (2, (2, 3))):
        me = member(worker)
        retake_snapshot(me, (0, 2))
        (action,) = me.actions
        assert (action.blocks, action.writers, action.settled, action.step) == (blocks, (0, 2), True, 9)
    idle = member(1)
    retake_snapshot(idle, (0, 2))
    assert idle.actions == []


def test_a_block_that_nobody_of_them_has_is_said_instead_of_being_left_out():
    me = member(0, copies=2)
    retake_snapshot(me, (0,))
    assert me.actions == [TakeSnapshot(ticket=5, step=9, blocks=(), writers=(0,), settled=True)]


def test_a_member_that_is_to_hold_a_block_and_does_not_yet_cannot_write_it():
    me = member(1, copies=2)
    me.held.remove(2)
    retake_snapshot(me, (1, 2))
    (action,) = me.actions
    assert action.blocks == ()
