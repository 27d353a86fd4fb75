"""Sites with bound data: the workers that bring an absent site back, and what users learn of it."""

from collections.abc import Iterable
from dataclasses import replace

from elastane.run.coordinator.roster import Roster, list_node_workers
from elastane.run.coordinator.run_end import stop_run
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.membership import Member, SiteName, WorkerId
from elastane.run.nouns.sites import find_absent_sites, find_missing_sites

STALLED_S = 2.0
"""A run that waits for a site and has made no step for this time makes none before the site is back."""


def list_awaited_sites(roster: Roster, members: Iterable[Member]) -> tuple[SiteName, ...]:
    """Return the sites for which rounds of these members would wait."""
    present = tuple(members)
    left_out = find_absent_sites(roster.rank_sites, roster.absent_rule, present)
    return tuple(site for site in find_missing_sites(roster.rank_sites, present) if site not in left_out)


def choose_joining(roster: Roster, present: Iterable[Member], places: int) -> tuple[Member, ...]:
    """Return the ready workers that join: one for each site without a worker first, then by number."""
    missing = set(find_missing_sites(roster.rank_sites, present))
    first, rest = list[Member](), list[Member]()
    for member in map(roster.make_member, _list_placed(roster)):
        (first if missing.intersection(member.sites) else rest).append(member)
        missing.difference_update(member.sites)
    return tuple(sorted((*first, *rest)[: max(0, places)], key=lambda member: member.worker))


def _list_placed(roster: Roster) -> tuple[WorkerId, ...]:
    """Return the ready workers; if sites have tickets, those that the agents of their machines name.

    Otherwise a worker could name another machine than its own, and take part at the sites of that one.
    """
    if not roster.site_tickets:
        return roster.ready
    here = {name: set(list_node_workers(report)) for name, report in roster.nodes.reports.items()}
    return tuple(worker for worker in roster.ready if worker in here.get(roster.reports[worker].node, ()))


def describe_awaited_sites(roster: Roster) -> str:
    """Say for which sites the run waits now; empty if for none."""
    if roster.over is not None or roster.finishing is not None:
        return ""
    if roster.newest is None:
        waiting = list_awaited_sites(roster, map(roster.make_member, roster.ready)) if roster.ready else ()
    else:
        waiting = list_awaited_sites(roster, _list_living_members(roster))
    return (
        f"the run waits for a worker of site {', '.join(waiting)}: only there its data is read"
        if waiting
        else ""
    )


def watch_sites(turn: Turn) -> None:
    """Record the sites that have lost their last worker, and those that are back."""
    roster = turn.roster
    if roster.newest is None or not roster.rank_sites or roster.finishing is not None:
        return
    missing = find_missing_sites(roster.rank_sites, _list_living_members(roster))
    what = "leave its virtual ranks out" if roster.absent_rule == "skip" else "wait for it"
    for site in missing:
        if site not in roster.missing_sites:
            turn.record("site.absent", who=f"site {site}", why=f"it has no worker now, so rounds {what}")
    for site in roster.missing_sites:
        if site not in missing:
            turn.record("site.present", who=f"site {site}", why="it has a worker again")
    turn.roster = replace(turn.roster, missing_sites=missing)


def dismiss_strays(turn: Turn) -> None:
    """Dismiss workers in a generation that the others had left before this coordinator knew of them.

    A lost proposal can leave one behind. The place of a worker of its site is free only without it.
    """
    roster, newest = turn.roster, turn.roster.newest
    if not roster.rank_sites:
        return
    if newest is None:
        # All members of the first generation died before its first step, and the next ready workers begin.
        involved, states, why = {*roster.dismissed}, ("leaving",), "the run begins without it"
    elif roster.settled and roster.known.begun >= newest.number:
        leaving = (leaver.worker for leaver in newest.leaving)
        involved, states = {*newest.workers, *leaving, *roster.dismissed}, ("member",)
        why = f"the others began generation {newest.number} without it"
    else:
        return
    for worker in roster.started:
        report = roster.reports.get(worker)
        if worker not in involved and report is not None and report.state in states:
            turn.dismiss(worker, 0, why)


def stop_waiting_run(turn: Turn) -> None:
    """Stop a run that waits for a site: its members would learn of the request with their next step."""
    roster = turn.roster
    if roster.stopping is None or roster.newest is None or not describe_awaited_sites(roster):
        return
    if turn.now - max(roster.progress.advanced_s, roster.term.began) >= STALLED_S:
        stop_run(turn)


def _list_living_members(roster: Roster) -> tuple[Member, ...]:
    members = () if roster.newest is None else roster.newest.members
    return tuple(member for member in members if not roster.is_gone(member.worker))
