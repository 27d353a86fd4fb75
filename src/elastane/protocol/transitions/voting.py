"""Votes and commits: from a worker's last sum to a round that cannot be undone."""

import msgspec

from elastane.protocol import messages
from elastane.protocol.actions import CommitRound, FailDisagreement, FailDivergence, Measure
from elastane.protocol.commit import compute_outcome, find_disagreement, find_divergence
from elastane.protocol.events import Measured, RoundKind
from elastane.protocol.transitions.auditing import audited, witnessed
from elastane.protocol.transitions.checkpoints import checkpoint_due
from elastane.protocol.transitions.hearing import recall_early
from elastane.protocol.transitions.state import MemberState, Round


def compare(me: MemberState) -> None:
    """All scripts must go the same way, what one trains no other may evaluate; and all copies be the same."""
    now = me.round
    if not (now.started and now.entered) or me.hopeless:
        return
    mine = now.votes.get(me.worker)
    why = find_disagreement(me.worker, now.entered.kind, mine.replicated if mine else None, now.votes)
    if why:
        me.hopeless = True
        me.actions.append(FailDisagreement(why))
    elif why := find_divergence(me.step, now.votes):
        me.hopeless = True
        me.actions.append(FailDivergence(why))


def measure(me: MemberState) -> None:
    """With all sums I need, all state I asked for and the copy I was to make, prepare the vote."""
    now, entered = me.round, me.round.entered
    if (
        not (now.started and entered and me.roles)
        or now.asked
        or me.wanted_values
        or me.wanted_states
        or (checkpoint_due(me, entered.kind) and not now.snapped)
    ):
        return
    if any(rank not in now.leaves or now.leaves[rank].worker != me.worker for rank in now.claims):
        return
    train = entered.kind == "train"
    needed = [block for block, holders in enumerate(me.holders) if me.worker in holders]
    if train and any(block not in now.rooted for block in needed):
        return
    now.asked = True
    me.ticket += 1
    now.ticket = me.ticket
    owned = tuple(block for block, owner in enumerate(me.owners) if owner == me.worker)
    digests = (*audited(me), *witnessed(me)) if digest_due(me, entered.kind) else ()
    me.actions.append(Measure(now.ticket, owned if train else (), digests))


def digest_due(me: MemberState, kind: RoundKind) -> bool:
    """Votes carry digests of the state before the round; a joiner must know it like all others."""
    every = me.layout.digest_every
    return kind == "settle" or (kind == "train" and every > 0 and me.step > 0 and me.step % every == 0)


def vote_with(me: MemberState, measured: Measured) -> None:
    now, generation = me.round, me.generation
    if not generation or not now.entered or now.voted:
        return
    now.voted = True
    me.voted_for = me.committed + 1
    ready = ready_for(me) if now.entered.kind == "train" else 0
    vote = messages.Vote(
        generation=generation.number,
        round=me.committed + 1,
        leaves=tuple(leaf for leaf in now.leaves.values() if leaf.worker == me.worker),
        norms=measured.norms,
        digests=measured.digests,
        ready=ready,
        stop=me.stopping,
        checkpoint=now.entered.checkpoint or me.checkpoint_asked,
        complete=me.complete,
        kind=now.entered.kind,
        replicated=measured.replicated,
        refused=me.storage_refused,
    )
    now.votes[me.worker] = vote
    for peer in generation.workers:
        if peer != me.worker:
            me.tell(peer, vote)


def ready_for(me: MemberState) -> int:
    """The newest planned generation whose joiners have all been heard: the way to them is open."""
    assert me.generation is not None, "only members of a generation vote"  # noqa: S101
    for number in sorted(me.planned, reverse=True):
        heard = me.statuses.get(number, {})
        if all(w in heard for w in me.planned[number].workers if w not in me.generation):
            return number
    return 0


def commit(me: MemberState) -> None:
    """All votes are here: from now on the round cannot be undone."""
    now, generation = me.round, me.generation
    if not (now.voted and generation and now.entered):
        return
    compare(me)
    if me.hopeless or any(worker not in now.votes for worker in generation.workers):
        return
    step = me.step + (now.entered.kind == "train")
    conclude(me, compute_outcome(me.committed + 1, step, now.leaves, now.votes, me.cursors))


def conclude(me: MemberState, outcome: messages.RoundOutcome) -> None:
    assert me.generation is not None, "only members of a generation commit"  # noqa: S101
    trained = outcome.step > me.step
    if outcome.checkpoint:
        me.checkpoint_asked, me.kept = False, outcome.step
    if not trained and me.outcome is not None and me.outcome.checkpoint:
        # Still to be made: an evaluation came in between.
        outcome = msgspec.structs.replace(outcome, checkpoint=True)
    me.committed, me.outcome = outcome.round, outcome
    if trained:
        me.applied = me.released = me.told_current = False
        me.current.clear()
        me.released_at.clear()
        me.committed_in = me.generation.number
        me.held &= me.should_hold() if me.has_voted_for(outcome.round) else set()
        me.behind = set(me.layout.everything) - {me.layout.rest} - me.held
        # An evaluation in between does not change what a training round has agreed on.
        me.next = me.planned.get(outcome.next_generation)
    me.round = Round()
    healthy = me.generation.number != me.first_generation
    me.actions.append(CommitRound(outcome, frozenset(me.held), healthy))
    recall_early(me)
