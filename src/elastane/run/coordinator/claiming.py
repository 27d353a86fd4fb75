"""The claims of unplanned generations and of the end: on several machines neither happens without one.

Two coordinators may live at once, when the network parts them or one of them was stopped for a while. Each
believes that the workers of the other one are dead. So an unplanned generation, and the end of the run, are
announced only after they have won the next slot of the run's claim list, which no coordinator of an earlier
term can win. Planned generations need the vote of every member, and steps need no coordinator; neither is
claimed.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from elastane.run.coordinator.actions import Claimable, ClaimHeld, ClaimUnanswered, Ending
from elastane.run.coordinator.deaths import format_worker_list
from elastane.run.coordinator.hearing import awaits_signs
from elastane.run.coordinator.roster import Roster
from elastane.run.coordinator.run_end import announce_end, fail_run
from elastane.run.coordinator.turn import Turn
from elastane.run.machines.claims.decisions import DecisionClaims
from elastane.run.machines.claims.terms import Superseded
from elastane.run.nouns.membership import WorkerId

CLAIM_AGAIN_S = 0.5
"""How long after an unanswered claim the coordinator asks for it again: a service may be overloaded."""


def find_unheard_generation(
    generations: Iterable[Collection[WorkerId]], present: Collection[WorkerId], ended: Collection[WorkerId]
) -> tuple[WorkerId, ...] | None:
    """Return the members of a generation that may be at work where this coordinator hears no member.

    A step commits with the votes of all members, and a worker that enters the next generation votes in no
    earlier one. So a generation cannot go on once the next one needs one of its members, or once all of its
    members have ended. Otherwise it may be at work beside the next one, as a second history of the run, and
    no report would show it. A member that is only silent has not ended.

    Args:
        generations: the members of each generation that may be at work.
        present: the workers with which the next generation would go on.
        ended: the workers that have ended, as their agents have seen.

    Returns:
        The members that are not known to have ended; None: no generation may be at work unheard.
    """
    for members in generations:
        unseen = tuple(sorted(set(members).difference(ended)))
        if unseen and set(members).isdisjoint(present):
            return unseen
    return None


def receive_held(turn: Turn, held: ClaimHeld) -> None:
    """Announce what has won its slot.

    A generation is in the chain now, even if a member has died meanwhile: another one follows then.
    """
    if turn.roster.claiming.pending != held.subject:
        return
    claiming = replace(turn.roster.claiming, pending=None, recorded=False)
    if isinstance(held.subject, Ending):
        turn.roster = replace(turn.roster, claiming=claiming)
        announce_end(turn, held.subject)
    else:
        turn.roster = replace(turn.roster, claiming=replace(claiming, newest=held.subject.number))
        turn.announce(held.subject)


def receive_unanswered(turn: Turn, unanswered: ClaimUnanswered) -> None:
    """Remember that the claim must be repeated, and record that once."""
    claiming = turn.roster.claiming
    if claiming.pending != unanswered.subject:
        return
    if not claiming.recorded:
        why = f"{unanswered.why}; {_describe_claim(unanswered.subject)} waits for the claim list"
        turn.record("claim.waiting", who="coordinator", why=why)
    turn.roster = replace(turn.roster, claiming=replace(claiming, unanswered=True, recorded=True))


def receive_check(turn: Turn, *, answered: bool) -> None:
    """Remember whether the claim list answers; see `elastane.run.coordinator.hearing.awaits_list`."""
    claiming = turn.roster.claiming
    if not turn.roster.spec.listen:
        return
    if answered and claiming.is_away:
        claiming = replace(claiming, is_away=False, back_s=turn.now, recorded=claiming.pending is not None)
    elif not answered:
        claiming = replace(claiming, is_away=True)
    turn.roster = replace(turn.roster, claiming=claiming)


def record_postponement(turn: Turn, what: str) -> None:
    """Record once per outage of the claim list that the coordinator decides nothing about a loss now."""
    claiming = turn.roster.claiming
    if claiming.is_away and not claiming.recorded:
        why = f"{what}, and the claim list does not answer; what follows waits for it"
        turn.record("claim.waiting", who="coordinator", why=why)
        turn.roster = replace(turn.roster, claiming=replace(claiming, recorded=True))


def claim_slot(claims: DecisionClaims, subject: Claimable) -> Superseded | None:
    """Claim a generation or the end of the run; see `DecisionClaims.claim`."""
    if isinstance(subject, Ending):
        return claims.claim_outcome(subject.event, subject.over, subject.cause, subject.files)
    return claims.claim_generation(subject.number, subject.workers)


def _describe_claim(subject: Claimable) -> str:
    if isinstance(subject, Ending):
        return f"the end of the run ({subject.over.why})"
    return f"steps go on, but generation {subject.number} ({subject.why})"


def repeat_claim(turn: Turn) -> None:
    """Repeat the pending claim if the list did not answer."""
    claiming = turn.roster.claiming
    if claiming.pending is not None and claiming.unanswered and turn.now - claiming.asked_s >= CLAIM_AGAIN_S:
        turn.claim(claiming.pending)


def may_go_on_with(turn: Turn, present: Collection[WorkerId]) -> bool:
    """Return whether an unplanned generation of these workers may be claimed now.

    Wait while this coordinator itself may be cut off, see `awaits_signs`, or if a generation may be at work
    without a member among these workers. If such members stay silent, their state is lost, and the run fails.
    """
    roster = turn.roster
    if not roster.spec.listen:
        return True
    if awaits_signs(roster, turn.now):
        return False
    claiming, possible, later = roster.claiming, _list_possible(roster), _find_later_workers(roster, present)
    ended = {worker for members in (*possible, later) for worker in members if roster.has_ended(worker)}
    if later and ended.issuperset(later):
        _fail_without_state(turn, f"it ended with {format_worker_list(later)}")
        return False
    unheard = later or find_unheard_generation(possible, present, ended)
    if unheard is None:
        turn.roster = replace(roster, claiming=replace(claiming, unheard_since=None))
        return True
    unheard_s = roster.spec.silence.unheard_s
    silent = f"{format_worker_list(unheard)} may be at work where this coordinator does not hear them"
    if claiming.unheard_since is None:
        turn.record(
            "generation.unheard",
            who="coordinator",
            why=f"{silent}; the others wait for them, for at most {unheard_s:g} s",
            workers=unheard,
        )
        turn.roster = replace(turn.roster, claiming=replace(claiming, unheard_since=turn.now))
    elif turn.now - claiming.unheard_since >= unheard_s:
        had = f"{format_worker_list(unheard)} had it, and nothing was heard of them for {unheard_s:g} s"
        _fail_without_state(turn, had)
    return False


def _fail_without_state(turn: Turn, why: str) -> None:
    """Fail the run, because its state is lost."""
    step = turn.roster.progress.step
    fail_run(turn, f"no living worker holds the state after step {step}: {why}", lost=True)


def _find_later_workers(roster: Roster, present: Collection[WorkerId]) -> tuple[WorkerId, ...]:
    """Return the workers of the last step in the ledger; empty if one of the present ones took part in it.

    If none did, all of them have an older state. Perhaps no claim shows that: later generations may have been
    planned, and the members of a claimed one may have left.
    """
    line = roster.claiming.last
    if line is None or any(
        roster.reports[worker].generation >= line.generation for worker in present if worker in roster.reports
    ):
        return ()
    return tuple(sorted(line.workers))


def _list_possible(roster: Roster) -> tuple[tuple[WorkerId, ...], ...]:
    """Return the members of each generation that may be at work, as far as known.

    A claimed generation may be at work although no report names it: the coordinator that claimed it may have
    died before it reached more than a few members. Generations before one that has begun are over.
    """
    begun = max(roster.times.newest, roster.known.begun)
    reported = [
        generation.workers for generation in (roster.newest, roster.at_work) if generation is not None
    ]
    return (
        *(claim.members for claim in roster.claiming.earlier if claim.number >= begun),
        *reported,
    )
