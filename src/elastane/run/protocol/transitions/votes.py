"""Votes and commits: the steps from a worker's last sum to a round that cannot be undone."""

import msgspec

from elastane.run.nouns.sites import list_site_ranks
from elastane.run.protocol import messages
from elastane.run.protocol.actions import (
    CommitRound,
    FailDisagreement,
    FailDivergence,
    FailSpotCheck,
    Measure,
    Recompute,
)
from elastane.run.protocol.commit import compute_outcome, find_disagreement, find_divergence
from elastane.run.protocol.events import Measured, RoundKind
from elastane.run.protocol.spot_checks import judge_results
from elastane.run.protocol.transitions.audits import find_audited_blocks, find_witnessed_blocks
from elastane.run.protocol.transitions.checkpoints import is_checkpoint_due
from elastane.run.protocol.transitions.inbox import retry_early_messages
from elastane.run.protocol.transitions.state import MemberState, RoundPhase, RoundState


def compare_votes(me: MemberState) -> None:
    """Fail if the scripts differ (one trains, another evaluates) or if two copies of the state differ."""
    round_ = me.round
    if me.script_ended and round_.votes and not me.cannot_commit:
        other, vote = min(round_.votes.items())
        why = f"worker {other} is in a round to {vote.kind}, and the script of worker {me.worker} has ended"
        me.cannot_commit = True
        me.actions.append(FailDisagreement(why))
        return
    if round_.phase < RoundPhase.COMPUTING or round_.entered is None or me.cannot_commit:
        return
    mine = round_.votes.get(me.worker)
    why = find_disagreement(me.worker, round_.entered.kind, mine.replicated if mine else None, round_.votes)
    if why:
        me.cannot_commit = True
        me.actions.append(FailDisagreement(why))
    elif why := find_divergence(me.step, round_.votes):
        me.cannot_commit = True
        me.actions.append(FailDivergence(why))


def request_measurements(me: MemberState) -> None:
    """Prepare the vote when all needed sums, all requested state and the due snapshot are here."""
    round_, entered = me.round, me.round.entered
    if (
        round_.phase is not RoundPhase.COMPUTING
        or not (entered and me.roles)
        or me.wanted_values
        or me.wanted_states
        or len(round_.recomputed) < round_.requested
        or round_.lacks_site
        or (is_checkpoint_due(me, entered.kind) and not round_.snapshot_taken)
    ):
        return
    if not me.has_computed:
        return
    is_training = entered.kind == "train"
    if is_training and me.layout.may_skip and len(round_.leaves) < entered.size:
        # If another member commits and is lost, this one must be able to commit the same outcome.
        return
    if is_training and any(
        block not in round_.rooted and me.worker in some for block, some in enumerate(me.holders)
    ):
        return
    round_.phase = RoundPhase.MEASURING
    me.requests += 1
    round_.measure_request = me.requests
    owned = tuple(block for block, owner in enumerate(me.owners) if owner == me.worker)
    digests = (
        (*find_audited_blocks(me), *find_witnessed_blocks(me)) if has_due_digests(me, entered.kind) else ()
    )
    me.actions.append(Measure(round_.measure_request, owned if is_training else (), digests))


def announce_leaves(me: MemberState) -> None:
    """Announce the results of this worker's virtual ranks, if the run may leave out sites."""
    round_, entered, generation = me.round, me.round.entered, me.generation
    if round_.phase < RoundPhase.COMPUTING or round_.leaves_sent or entered is None or generation is None:
        return
    if not (me.layout.may_skip and entered.kind == "train" and me.has_computed):
        return
    round_.leaves_sent = True
    leaves = tuple(leaf for leaf in round_.leaves.values() if leaf.worker == me.worker)
    ready = messages.LeavesReady(generation=generation.number, round=me.committed + 1, leaves=leaves)
    for peer in generation.workers:
        if peer != me.worker:
            me.send(peer, ready)


def end_void_round(me: MemberState) -> None:
    """Conclude a round that is void because of an absent site, when this worker computes nothing for it."""
    if me.round.is_void and me.has_computed and len(me.round.recomputed) == me.round.requested:
        # Partial sums of this round may still be on their way from the training thread.
        me.assignment += 1
        void_round(me)


def find_computable(me: MemberState) -> dict[int, frozenset[int]] | None:
    """Return the virtual ranks of the present round that each member may compute; None: all."""
    entered, rank_sites = me.round.entered, me.layout.rank_sites
    if not rank_sites or me.generation is None or entered is None or entered.kind != "train":
        return None
    return {
        member.worker: list_site_ranks(rank_sites, member.sites) | me.round.left_out
        for member in me.generation.members
    }


def has_due_digests(me: MemberState, kind: RoundKind) -> bool:
    """Return whether the vote carries digests of the state before the round; all members must agree on it."""
    every, began_at = me.layout.digest_every, me.layout.began_at
    is_due = me.step == began_at or (every > 0 and me.step % every == 0)
    return kind == "settle" or (kind == "train" and me.step > 0 and is_due)


def cast_vote(me: MemberState, measured: Measured) -> None:
    round_, generation = me.round, me.generation
    if not generation or not round_.entered or round_.phase is not RoundPhase.MEASURING:
        return
    round_.phase = RoundPhase.VOTED
    me.voted_for = me.committed + 1
    ready = find_ready_generation(me) if round_.entered.kind == "train" else 0
    vote = messages.Vote(
        generation=generation.number,
        round=me.committed + 1,
        leaves=tuple(leaf for leaf in round_.leaves.values() if leaf.worker == me.worker),
        norms=measured.norms,
        digests=measured.digests,
        ready=ready,
        stop=me.stopping,
        checkpoint=round_.entered.checkpoint or me.checkpoint_requested,
        complete=me.complete,
        kind=round_.entered.kind,
        replicated=measured.replicated,
        refused=me.storage_refused,
        recomputed=round_.recomputed,
        unchecked=round_.unchecked,
    )
    send_vote(me, vote)


def send_vote(me: MemberState, vote: messages.Vote) -> None:
    assert me.generation is not None, "only members of a generation vote"
    me.round.votes[me.worker] = vote
    for peer in me.generation.workers:
        if peer != me.worker:
            me.send(peer, vote)


def vote_again(me: MemberState) -> None:
    """Vote again with a further result of a spot check; until then no member can commit the round."""
    mine = me.round.votes.get(me.worker)
    if mine is not None and len(me.round.recomputed) > len(mine.recomputed):
        send_vote(me, msgspec.structs.replace(mine, recomputed=me.round.recomputed))


def find_ready_generation(me: MemberState) -> int:
    """Return the newest planned generation that has statuses of all its joiners; 0 without one."""
    assert me.generation is not None, "only members of a generation vote"
    for number in sorted(me.planned, reverse=True):
        statuses = me.statuses.get(number, {})
        if all(w in statuses for w in me.planned[number].workers if w not in me.generation):
            return number
    return 0


def commit_round(me: MemberState) -> None:
    """Commit the round when all votes are here; from then on it cannot be undone."""
    round_, generation = me.round, me.generation
    if round_.phase < RoundPhase.VOTED or not (generation and round_.entered):
        return
    compare_votes(me)
    if me.cannot_commit or any(worker not in round_.votes for worker in generation.workers):
        return
    judgement = judge_results(round_.leaves, round_.votes, find_computable(me))
    if judgement.finding is not None:
        me.actions.append(FailSpotCheck(judgement.finding))
        if judgement.finding.wrong is None:
            me.cannot_commit = True
            return
    if judgement.finding is not None or judgement.void:
        void_round(me)
        return
    if judgement.needed:
        if me.worker in judgement.needed and round_.requested == len(round_.recomputed):
            request_recomputation(me, judgement.virtual_rank)
        return
    step = me.step + (round_.entered.kind == "train")
    left_out = round_.left_out
    outcome = compute_outcome(me.committed + 1, step, round_.leaves, round_.votes, me.cursors, left_out)
    conclude_round(me, msgspec.structs.replace(outcome, agreed=judgement.agreed))


def request_recomputation(me: MemberState, virtual_rank: int) -> None:
    me.round.requested += 1
    me.actions.append(Recompute(virtual_rank))


def void_round(me: MemberState) -> None:
    """Conclude a training round without an outcome, as all members do: the next round repeats its step."""
    # The training thread has not left the round.
    me.committed, entered = me.committed + 1, me.round.entered
    me.round = RoundState()
    me.round.entered = entered
    retry_early_messages(me)


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
        me.behind = set(me.layout.everything) - {me.layout.replicated_unit} - me.held
        # An evaluation in between does not change the agreement of a training round.
        me.next = me.planned.get(outcome.next_generation)
    me.round = RoundState()
    healthy = me.generation.number != me.first_generation
    me.actions.append(CommitRound(outcome, frozenset(me.held), healthy))
    retry_early_messages(me)
