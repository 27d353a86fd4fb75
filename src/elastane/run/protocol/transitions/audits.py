"""Audits: the choice of the copy of a block to digest and checkpoint, and of the copy to compare with it."""

from elastane.run.protocol.ownership import spread_blocks
from elastane.run.protocol.transitions.state import MemberState


def find_auditors(me: MemberState) -> tuple[int, ...]:
    """Return, per block, the worker that digests its state and copies it for checkpoints."""
    if me.roles is None:
        return ()
    able = find_complete_members(me)
    return spread_blocks(me.layout.blocks, able) if able else me.roles.auditors


def find_audited_blocks(me: MemberState) -> tuple[int, ...]:
    return tuple(block for block, auditor in enumerate(find_auditors(me)) if auditor == me.worker)


def find_witnessed_blocks(me: MemberState) -> tuple[int, ...]:
    """Return the blocks that this worker digests as a witness: a further copy of each, which rotates.

    Every worker has the values of every block, even without the block's optimizer state.
    """
    if not me.layout.compared or me.roles is None:
        return ()
    turn = me.step // max(me.layout.digest_every, 1)
    found = []
    for block, auditor in enumerate(find_auditors(me)):
        copies = find_complete_members(me) if me.layout.copies is None else _list_members(me)
        others = [worker for worker in copies if worker != auditor]
        if others and others[(block + turn) % len(others)] == me.worker:
            found.append(block)
    return tuple(found)


def _list_members(me: MemberState) -> tuple[int, ...]:
    return me.generation.workers if me.generation is not None else ()


def find_complete_members(me: MemberState) -> tuple[int, ...]:
    """Return the members that reported complete state with the last round, if all should hold all state.

    This includes joiners of this generation, after they have it.
    """
    if me.generation is None or me.outcome is None or me.layout.copies is not None:
        return ()
    return tuple(worker for worker in me.generation.workers if worker in me.outcome.complete)
