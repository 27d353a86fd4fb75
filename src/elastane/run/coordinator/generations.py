"""The proposal of the next generation: the first, one after a death, or a planned one."""

from dataclasses import replace

from elastane.run.coordinator.balance import evaluate_balance
from elastane.run.coordinator.claiming import may_go_on_with
from elastane.run.coordinator.deaths import LAST_WORD_S, describe_causes, format_worker_list
from elastane.run.coordinator.roster import Roster
from elastane.run.coordinator.run_end import fail_run, stop_run
from elastane.run.coordinator.sites import choose_joining, list_awaited_sites
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.membership import Generation, Member, WorkerId


def begin_first_generation(turn: Turn) -> None:
    """Propose the first generation once as many workers are ready as the run starts with.

    After three failed joins in a row the target is the number of ready workers, see `count_failed_join`.
    """
    roster = turn.roster
    if roster.newest is not None or not roster.nodes.reports or roster.wanted.target is None:
        return
    if roster.stopping is not None:
        stop_run(turn)
        return
    if roster.term.number > roster.term.first and any(
        worker not in roster.reports for worker in roster.started
    ):
        # A silent worker may be training, and a new beginning beside it would be a second run.
        return
    members = choose_joining(roster, (), roster.wanted.target)
    ready = tuple(member.worker for member in members)
    if not may_go_on_with(turn, ready) or list_awaited_sites(roster, members):
        return
    if roster.progress.step > roster.progress.origin:
        fail_run(turn, _describe_loss(roster), lost=True)
        return
    # The machine that began the run may have no workers of its own; then it starts with the first of others.
    if len(ready) >= max(1, min(roster.spec.start, roster.wanted.target)):
        turn.propose(
            members, planned=False, why=f"{format_worker_list(ready)} begin" + ("" if len(ready) > 1 else "s")
        )


def replace_dead_workers(turn: Turn) -> None:
    """Propose a generation of the survivors at once when a needed worker is gone.

    Do the same if this coordinator took over during a change, or learned of an unknown generation: then
    all members regroup under a new number.
    """
    roster = turn.roster
    newest, at_work = roster.newest, roster.at_work
    if newest is None or at_work is None or roster.finishing is not None:
        return
    if any(worker not in roster.reports for worker in roster.list_living(roster.needed)):
        # A new coordinator does not know the state of a silent worker, which will report or prove dead.
        return
    dead = sorted(roster.needed - set(roster.list_living(roster.needed)))
    # The others may be in an evaluation, in which a newcomer cannot take part: it joins again in a planned
    # generation. It is among the leavers here, because it may have begun and hold state by now.
    aside = {*roster.list_newcomers(at_work), *roster.departed}
    living = tuple(member for member in at_work.members if not roster.is_gone(member.worker))
    survivors = tuple(member for member in living if member.worker not in aside)
    leaving = roster.list_handing_over(at_work) + tuple(
        member for member in living if member.worker in aside and member.worker not in roster.dismissed
    )
    why = f"{format_worker_list(dead)} died" if dead else _find_reason_to_regroup(roster, newest)
    present = tuple(member.worker for member in survivors + leaving)
    if not why or not may_go_on_with(turn, present) or (dead and _fail_without_state(turn, present)):
        return
    if survivors:
        turn.propose(survivors, planned=False, why=why, leaving=leaving)
    elif dead and roster.progress.step > roster.progress.origin:
        # Those that were leaving hold a part of the state, or all of it, and no member is left to take it.
        fail_run(turn, _describe_loss(roster), lost=True)
    elif dead:
        # Nothing has been trained, so nothing is lost: the next ready workers begin.
        turn.roster = replace(turn.roster, newest=None)


def _find_reason_to_regroup(roster: Roster, newest: Generation) -> str:
    """Return why members must regroup although none is dead; empty if they need not."""
    if roster.known.contested or _is_change_unfinished(roster):
        return f"the coordinator of term {roster.term.number} took over during a change"
    # They left with an earlier generation, before the newest proposal reached them.
    left = sorted(roster.departed.intersection(newest.workers))
    return f"{format_worker_list(left)} had left" if left else ""


def _is_change_unfinished(roster: Roster) -> bool:
    newest = roster.newest
    return (
        newest is not None
        and newest.term < roster.term.number
        and any(
            worker in roster.reports and roster.reports[worker].generation != newest.number
            for worker in newest.workers
        )
    )


def _fail_without_state(turn: Turn, survivors: tuple[WorkerId, ...]) -> bool:
    """End the run when every copy of the state is gone; return True while that is or may be the case."""
    roster = turn.roster
    if roster.progress.step == roster.progress.origin or any(
        roster.holds_state(worker) for worker in survivors
    ):
        turn.roster = replace(roster, troubles=replace(roster.troubles, lost_since=None))
        return False
    since = turn.now if roster.troubles.lost_since is None else roster.troubles.lost_since
    turn.roster = replace(roster, troubles=replace(roster.troubles, lost_since=since))
    # The report of a death may overtake a survivor's report that its state is complete.
    if not survivors or turn.now - since >= LAST_WORD_S:
        fail_run(turn, _describe_loss(roster), lost=True)
    return True


def _describe_loss(roster: Roster) -> str:
    # `elastane run`, or the controller of the job, says what to do.
    why = f"no living worker holds the state after step {roster.progress.step}: every copy died"
    return why + describe_causes(roster, roster.needed)


def plan_generation(turn: Turn) -> None:
    """Propose a planned generation after a settled one: for joins, leaves or, without these, new shares.

    Do not plan before a death is handled: the generation would not name the dead worker. Members leave
    only if the state that they hold remains: see `_can_spare`.
    """
    roster = turn.roster
    newest, target = roster.newest, roster.wanted.target
    # Without the worker that brings a site back there is no step after which leavers are needed no more. A
    # generation that has begun has their statuses.
    is_waiting = (
        newest is not None
        and roster.known.begun >= newest.number
        and bool(list_awaited_sites(roster, newest.members))
    )
    if (
        newest is None
        or target is None
        or not roster.settled
        or len(roster.list_living(roster.needed)) < len(roster.needed)
        or roster.stopping is not None
        or roster.finishing is not None
        or (not (roster.needs_no_leavers or is_waiting) and roster.list_handing_over(newest))
    ):
        return
    staying, leaving = _split_members(newest.members, roster.wanted.draining, target)
    wanted = target - len(staying)
    if not _can_spare(roster, staying):
        staying, leaving = newest.members, ()
    # A controller may raise the target beyond the limits that the run began with.
    most = max(target, roster.spec.max_workers)
    joiners = choose_joining(roster, staying, min(wanted, most - len(staying)))
    joining = tuple(member.worker for member in joiners)
    if joining or leaving:
        parts = (
            [f"{format_worker_list(joining)} join" + ("s" if len(joining) == 1 else "")] if joining else []
        )
        if leaving:
            leavers = [member.worker for member in leaving]
            parts.append(f"{format_worker_list(leavers)} leave" + ("s" if len(leavers) == 1 else ""))
        turn.propose(staying + joiners, planned=True, why=", ".join(parts), leaving=leaving)
    elif roster.whole:
        _assign_by_speed(turn)


def _can_spare(roster: Roster, staying: tuple[Member, ...]) -> bool:
    """Return whether the members that stay hold the state.

    After every member has completed its state, a leaver can hand over the blocks that only it holds. If each
    member holds all state, one complete member is enough: another may still be receiving its copy, and a
    notice of half a minute is too short to wait for that.
    """
    if roster.whole or roster.spec.copies is not None:
        return roster.whole and bool(staying)
    return any(roster.reports[member.worker].complete for member in staying)


def _split_members(
    members: tuple[Member, ...], draining: frozenset[WorkerId], target: int
) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
    """Return the members that stay, and those that leave: on request, or the newest beyond the target."""
    rest = sorted(member.worker for member in members if member.worker not in draining)
    stay = set(rest[:target])
    return (
        tuple(member for member in members if member.worker in stay),
        tuple(member for member in members if member.worker not in stay),
    )


def list_leaving(roster: Roster) -> tuple[WorkerId, ...]:
    """Return the living workers that are leaving, by number: dismissed, asked to leave, or soon to be."""
    if roster.newest is None or roster.wanted.target is None:
        return tuple(worker for worker in roster.started if worker in roster.dismissed)
    members = tuple(member for member in roster.newest.members if not roster.is_gone(member.worker))
    staying = {
        member.worker for member in _split_members(members, roster.wanted.draining, roster.wanted.target)[0]
    }
    known = roster.joined.union(roster.newest.workers, roster.wanted.draining, roster.dismissed)
    return tuple(worker for worker in roster.started if worker in known - staying)


def _assign_by_speed(turn: Turn) -> None:
    roster = turn.roster
    newest = roster.newest
    if newest is None:
        return
    compute_s = {worker: roster.reports[worker].compute_s for worker in newest.workers}
    balance, members = evaluate_balance(roster.balance, newest, compute_s, turn.now)
    if balance != roster.balance:
        turn.roster = replace(roster, balance=balance)
    if members is not None:
        speeds = ", ".join(f"worker {member.worker} {member.speed:.2f}" for member in members)
        turn.record(
            "shares.rebalanced", who="coordinator", why=f"measured speeds: {speeds}", workers=newest.workers
        )
        turn.propose(members, planned=True, why="virtual ranks are assigned by measured speed")
