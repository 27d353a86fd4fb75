"""A worker's part in a checkpoint: the time of the copy, and its blocks."""

from elastane.run.protocol.actions import TakeSnapshot
from elastane.run.protocol.events import RewriteRequested, RoundKind
from elastane.run.protocol.ownership import spread_blocks
from elastane.run.protocol.transitions.audits import find_auditors, find_complete_members
from elastane.run.protocol.transitions.state import MemberState, RoundPhase
from elastane.run.protocol.tree import expand_spans


def take_snapshot(me: MemberState) -> None:
    """Copy this worker's blocks of a checkpoint during computing: the state changes only with the commit."""
    round_, entered = me.round, me.round.entered
    if (
        round_.phase < RoundPhase.COMPUTING
        or not (entered and me.roles)
        or me.wanted_values
        or me.wanted_states
    ):
        return
    if round_.snapshot_request or not is_checkpoint_due(me, entered.kind):
        return
    me.requests += 1
    round_.snapshot_request = me.requests
    _request_copy(me, choose_writers(me))


def retake_snapshot(me: MemberState, order: RewriteRequested) -> None:
    """Copy blocks of the last state of a run again, which is final: some writers could not write their parts.

    A repeated order does not restart the work. The coordinator has divided the blocks among the writers: they
    may work in different generations, in which a block has different holders.

    Args:
        me: this member; it has committed the last round, as have all writers.
    """
    if order.attempt <= me.last_rewrite:
        return
    me.last_rewrite = order.attempt
    able = set(me.blocks_to_write).issuperset(order.blocks)
    me.requests += 1
    me.actions.append(
        TakeSnapshot(me.requests, me.step, order.blocks if able else (), order.writers, order.attempt)
    )


def choose_writers(me: MemberState) -> tuple[int, ...]:
    """Return the writer of each block: its auditor, unless storage has refused the auditor's last part.

    All members agree, because all know the same outcome of the previous round.
    """
    refused = set() if me.outcome is None else set(me.outcome.refused)
    usual = find_auditors(me)
    if not refused.intersection(usual):
        return usual
    able = [worker for worker in me.generation.workers if worker not in refused] if me.generation else []
    chosen = _choose_among(me, tuple(able))
    # If no other worker has a block, its auditor tries again.
    return tuple(a if b is None else b for a, b in zip(usual, chosen or (None,) * len(usual), strict=True))


def _choose_among(me: MemberState, able: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return, per block, which of some members writes it; None if none of them has its state."""
    if me.layout.copies is None:
        complete = find_complete_members(me)
        whole = [worker for worker in able if worker in complete]
        return tuple(spread_blocks(me.layout.blocks, whole)) if whole else ()
    spare = _find_spare_copies(me)
    return tuple(
        next((worker for worker in (*some, *spare[block]) if worker in able), None)
        for block, some in enumerate(me.holders)
    )


def _find_spare_copies(me: MemberState) -> tuple[tuple[int, ...], ...]:
    """Return, per block, the members that had its state when the generation began and have it still.

    A member keeps the blocks that it should not hold any more until the next round commits. All members know
    the same statuses.
    """
    statuses = me.statuses.get(me.generation.number, {}) if me.generation is not None and me.begun else {}
    kept = {
        worker: expand_spans(status.held)
        for worker, status in sorted(statuses.items())
        if status.committed == me.committed
    }
    return tuple(
        tuple(worker for worker, held in kept.items() if block in held) for block in range(me.layout.blocks)
    )


def _request_copy(me: MemberState, chosen: tuple[int, ...]) -> None:
    me.actions.append(
        TakeSnapshot(
            request=me.requests,
            step=me.step,
            blocks=tuple(block for block, writer in enumerate(chosen) if writer == me.worker),
            writers=tuple(sorted(set(chosen))),
        )
    )


def is_checkpoint_due(me: MemberState, kind: RoundKind) -> bool:
    """Return whether this round copies the state; an evaluation leaves that to the next step or the end."""
    if kind == "settle":
        return me.layout.checkpoints
    return kind == "train" and me.outcome is not None and me.outcome.checkpoint
