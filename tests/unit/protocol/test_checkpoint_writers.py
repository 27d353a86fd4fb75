"""The writers of the blocks of a checkpoint, when storage refuses some members."""

from types import SimpleNamespace

import pytest

from elastane.protocol import messages
from elastane.protocol.actions import TakeSnapshot
from elastane.protocol.commit import compute_outcome
from elastane.protocol.layout import Layout
from elastane.protocol.transitions.checkpoints import choose_writers, retake_snapshot

BLOCKS = 4
SPREAD = (0, 0, 1, 1)


def make_member(
    worker=0, *, refused=(), complete=(0, 1, 2), copies=None, holders=((0, 1), (0, 1), (1, 2), (1, 2))
):
    """Return one of three members that have committed a round with this outcome."""
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
        generation=SimpleNamespace(number=3, workers=(0, 1, 2)),
        roles=SimpleNamespace(auditors=auditors, holders=holders),
        holders=holders,
        step=9,
        requests=5,
        actions=[],
        held=set(range(5)),
        behind=set(),
        begun=True,
        committed=10,
        statuses={},
    )


def test_without_refusals_the_auditor_of_a_block_writes_it():
    assert choose_writers(make_member()) == (0, 0, 1, 2)
    assert choose_writers(make_member(copies=2)) == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("refused", "copies", "expected"),
    [
        ((0,), None, (1, 1, 2, 2)),
        ((0, 1), None, (2, 2, 2, 2)),
        ((0,), 2, (1, 1, 1, 1)),
        ((1,), 2, (0, 0, 2, 2)),
        # No other worker keeps the last two blocks: their holder tries again.
        ((1, 2), 2, (0, 0, 1, 1)),
        ((0, 1, 2), None, (0, 0, 1, 2)),
    ],
)
def test_another_holder_writes_the_block_of_a_refused_worker(refused, copies, expected):
    for worker in range(3):
        assert choose_writers(make_member(worker, refused=refused, copies=copies)) == expected


@pytest.mark.parametrize(
    ("committed", "begun", "expected"),
    [(10, True, (0, 0, 0, 1)), (9, True, (0, 0, 1, 1)), (10, False, (0, 0, 1, 1))],
)
def test_a_member_that_still_has_a_block_beyond_its_share_writes_it(committed, begun, expected):
    for worker in range(3):
        me = make_member(worker, refused=(1, 2), copies=2)
        me.begun = begun
        me.statuses[3] = {
            member: messages.Status(generation=3, worker=member, committed=committed, outcome=None, held=held)
            for member, held in ((0, ((0, 3),)), (1, ((0, 4),)), (2, ((2, 4),)))
        }
        assert choose_writers(me) == expected


def test_the_outcome_names_every_refused_worker():
    votes = {
        worker: messages.Vote(generation=1, round=1, leaves=(), refused=worker in {0, 2})
        for worker in (0, 1, 2)
    }
    assert compute_outcome(1, 1, {}, votes).refused == (0, 2)


def test_able_workers_copy_the_settled_state_again():
    for worker, blocks in ((0, (0, 1)), (2, (2, 3))):
        me = make_member(worker)
        retake_snapshot(me, (0, 2))
        (action,) = me.actions
        assert (action.blocks, action.writers, action.settled, action.step) == (blocks, (0, 2), True, 9)
    idle = make_member(1)
    retake_snapshot(idle, (0, 2))
    assert idle.actions == []


def test_writers_report_that_they_lack_a_block():
    me = make_member(0, copies=2)
    retake_snapshot(me, (0,))
    assert me.actions == [TakeSnapshot(request=5, step=9, blocks=(), writers=(0,), settled=True)]


def test_a_member_cannot_write_a_block_that_it_does_not_hold_yet():
    me = make_member(1, copies=2)
    me.held.remove(2)
    retake_snapshot(me, (1, 2))
    (action,) = me.actions
    assert action.blocks == ()
