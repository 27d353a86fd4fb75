"""A worker's part in a checkpoint: when a copy is due, and of which blocks."""

from elastane.protocol.actions import Snapshot
from elastane.protocol.events import Kind
from elastane.protocol.ownership import spread
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


def audited(me: MemberState) -> tuple[int, ...]:
    return tuple(block for block, auditor in enumerate(auditors(me)) if auditor == me.worker)


def auditors(me: MemberState) -> tuple[int, ...]:
    """Per block, who digests its state and copies it for checkpoints.

    Where everyone keeps everything that is all who said so with the last round, joiners of this
    generation too, once they have it.
    """
    if me.roles is None or me.generation is None:
        return ()
    complete = me.outcome.complete if me.outcome and me.layout.copies is None else ()
    able = [worker for worker in me.generation.workers if worker in complete]
    return spread(me.layout.blocks, able) if able else me.roles.auditors
