"""The writers of the blocks of a checkpoint, when storage refuses some members."""

from types import SimpleNamespace

import msgspec
import pytest

from elastane.run.protocol import messages
from elastane.run.protocol.actions import TakeSnapshot
from elastane.run.protocol.commit import compute_outcome
from elastane.run.protocol.events import RewriteRequested
from elastane.run.protocol.layout import Layout
from elastane.run.protocol.transitions.checkpoints import choose_writers, retake_snapshot
from elastane.run.protocol.transitions.state import MemberState

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


def make_finished_member(held, *, copies=2, behind=()):
    """Return a member with units for parameters if ``copies`` is None, else for blocks, and one more."""
    units = 5 if copies else 3
    layout = Layout(virtual_ranks=4, blocks=BLOCKS, units=units, unit_bytes=(1,) * units, copies=copies)
    me = MemberState(0, layout, msgspec.structs.replace(messages.BEGINNING, step=9))
    me.held, me.behind = set(held), set(behind)
    return me


def test_a_writer_copies_the_blocks_of_its_order_once():
    me = make_finished_member({0, 1, 3, 4})
    for blocks, attempt in (((1, 3), (2, 1)), ((1, 3), (2, 1)), ((0,), (1, 9)), ((0, 1), (3, 1))):
        retake_snapshot(me, RewriteRequested((0, 2), blocks, attempt))
    assert me.actions == [
        TakeSnapshot(request=1, step=9, blocks=(1, 3), writers=(0, 2), attempt=(2, 1)),
        TakeSnapshot(request=2, step=9, blocks=(0, 1), writers=(0, 2), attempt=(3, 1)),
    ]
    assert all(action.settled for action in me.actions)


def test_a_writer_reports_that_it_lacks_a_block_of_its_order():
    me = make_finished_member({0, 1, 3, 4})
    retake_snapshot(me, RewriteRequested((0,), (1, 2), (1, 1)))
    assert me.actions == [TakeSnapshot(request=1, step=9, blocks=(), writers=(0,), attempt=(1, 1))]


@pytest.mark.parametrize(
    ("held", "copies", "behind", "expected"),
    [
        ({0, 2, 4}, 2, (), (0, 2)),
        ({0, 2, 4}, 2, (3,), ()),
        # Every worker is to hold everything, so some of it is a copy that has not arrived in full.
        ({0, 2}, None, (), ()),
        ({0, 1, 2}, None, (), (0, 1, 2, 3)),
    ],
)
def test_a_worker_without_all_values_can_write_no_block(held, copies, behind, expected):
    assert make_finished_member(held, copies=copies, behind=behind).blocks_to_write == expected
