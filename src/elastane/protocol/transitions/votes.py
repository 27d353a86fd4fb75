"""Votes and commits: the steps from a worker's last sum to a round that cannot be undone."""

import msgspec

from elastane.protocol import messages
from elastane.protocol.actions import CommitRound, FailDisagreement, FailDivergence, Measure
from elastane.protocol.commit import compute_outcome, find_disagreement, find_divergence
from elastane.protocol.events import Measured, RoundKind
from elastane.protocol.transitions.audits import find_audited_blocks, find_witnessed_blocks
from elastane.protocol.transitions.checkpoints import is_checkpoint_due
from elastane.protocol.transitions.inbox import retry_early_messages
from elastane.protocol.transitions.state import MemberState, RoundPhase, RoundState


def compare_votes(me: MemberState) -> None:
    """Fail if the scripts differ (one trains, another evaluates) or if two copies of the state differ."""
    now = me.round
    if now.phase < RoundPhase.COMPUTING or now.entered is None or me.cannot_commit:
        return
    mine = now.votes.get(me.worker)
    why = find_disagreement(me.worker, now.entered.kind, mine.replicated if mine else None, now.votes)
    if why:
        me.cannot_commit = True
        me.actions.append(FailDisagreement(why))
    elif why := find_divergence(me.step, now.votes):
        me.cannot_commit = True
        me.actions.append(FailDivergence(why))


def request_measurements(me: MemberState) -> None:
    """Prepare the vote when all needed sums, all requested state and the due snapshot are here."""
    now, entered = me.round, me.round.entered
    if (
        now.phase is not RoundPhase.COMPUTING
        or not (entered and me.roles)
        or me.wanted_values
        or me.wanted_states
        or (is_checkpoint_due(me, entered.kind) and not now.snapshot_taken)
    ):
        return
    if any(rank not in now.leaves or now.leaves[rank].worker != me.worker for rank in now.claims):
        return
    train = entered.kind == "train"
    needed = [block for block, holders in enumerate(me.holders) if me.worker in holders]
    if train and any(block not in now.rooted for block in needed):
        return
    now.phase = RoundPhase.MEASURING
    me.ticket += 1
    now.measure_ticket = me.ticket
    owned = tuple(block for block, owner in enumerate(me.owners) if owner == me.worker)
    digests = (
        (*find_audited_blocks(me), *find_witnessed_blocks(me)) if has_due_digests(me, entered.kind) else ()
    )
    me.actions.append(Measure(now.measure_ticket, owned if train else (), digests))


def has_due_digests(me: MemberState, kind: RoundKind) -> bool:
    """Return whether the vote carries digests of the state before the round; all members must agree on it."""
    every = me.layout.digest_every
    return kind == "settle" or (kind == "train" and every > 0 and me.step > 0 and me.step % every == 0)


def cast_vote(me: MemberState, measured: Measured) -> None:
    now, generation = me.round, me.generation
    if not generation or not now.entered or now.phase is not RoundPhase.MEASURING:
        return
    now.phase = RoundPhase.VOTED
    me.voted_for = me.committed + 1
    ready = find_ready_generation(me) if now.entered.kind == "train" else 0
    vote = messages.Vote(
        generation=generation.number,
        round=me.committed + 1,
        leaves=tuple(leaf for leaf in now.leaves.values() if leaf.worker == me.worker),
        norms=measured.norms,
        digests=measured.digests,
        ready=ready,
        stop=me.stopping,
        checkpoint=now.entered.checkpoint or me.checkpoint_requested,
        complete=me.complete,
        kind=now.entered.kind,
        replicated=measured.replicated,
        refused=me.storage_refused,
    )
    now.votes[me.worker] = vote
    for peer in generation.workers:
        if peer != me.worker:
            me.send(peer, vote)


def find_ready_generation(me: MemberState) -> int:
    """Return the newest planned generation that has statuses of all its joiners; 0 without one."""
    assert me.generation is not None, "only members of a generation vote"
    for number in sorted(me.planned, reverse=True):
        heard = me.statuses.get(number, {})
        if all(w in heard for w in me.planned[number].workers if w not in me.generation):
            return number
    return 0


def commit_round(me: MemberState) -> None:
    """Commit the round when all votes are here; from then on it cannot be undone."""
    now, generation = me.round, me.generation
    if now.phase < RoundPhase.VOTED or not (generation and now.entered):
        return
    compare_votes(me)
    if me.cannot_commit or any(worker not in now.votes for worker in generation.workers):
        return
    step = me.step + (now.entered.kind == "train")
    conclude_round(me, compute_outcome(me.committed + 1, step, now.leaves, now.votes, me.cursors))


def conclude_round(me: MemberState, outcome: messages.RoundOutcome) -> None:
    assert me.generation is not None, "only members of a generation commit"
    trained = outcome.step > me.step
    if outcome.checkpoint:
        me.checkpoint_requested, me.checkpointed_step = False, outcome.step
    if not trained and me.outcome is not None and me.outcome.checkpoint:
        # An evaluation came in between, so the checkpoint is still due.
        outcome = msgspec.structs.replace(outcome, checkpoint=True)
    me.committed, me.outcome = outcome.round, outcome
    if trained:
        me.applied = me.released = me.current_announced = False
        me.current.clear()
        me.released_at.clear()
        me.committed_in = me.generation.number
        me.held &= me.find_units_to_hold() if me.has_voted_for(outcome.round) else set()
        me.behind = set(me.layout.everything) - {me.layout.rest} - me.held
        # An evaluation in between does not change the agreement of a training round.
        me.next = me.planned.get(outcome.next_generation)
    me.round = RoundState()
    healthy = me.generation.number != me.first_generation
    me.actions.append(CommitRound(outcome, frozenset(me.held), healthy))
    retry_early_messages(me)
