"""A worker's part in a checkpoint: when a copy is due, and of which blocks."""

from elastane.protocol.actions import Snapshot
from elastane.protocol.events import Kind
from elastane.protocol.transitions.auditing import audited, auditors
from elastane.protocol.transitions.state import MemberState


def snapshot(me: MemberState) -> None:
    """Copy what I am to write of a checkpoint under the computing: nothing changes before the commit."""
    now, entered = me.round, me.round.entered
    if not (now.started and entered and me.roles) or me.wanted_values or me.wanted_states:
        return
    if now.snapshot or not checkpoint_due(me, entered.kind):
        return
    me.ticket += 1
    now.snapshot = me.ticket
    me.actions.append(
        Snapshot(
            ticket=now.snapshot,
            step=me.step,
            blocks=audited(me),
            writers=tuple(sorted(set(auditors(me)))),
        )
    )


def checkpoint_due(me: MemberState, kind: Kind) -> bool:
    """An evaluation changes nothing: the state is copied under the next step, or at the end."""
    if kind == "settle":
        return me.layout.checkpoints
    return kind == "train" and me.outcome is not None and me.outcome.checkpoint
