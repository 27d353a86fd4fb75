"""Machines that join with the ticket of a site: they take part as this site, as long as it is valid."""

from dataclasses import replace

from elastane.common.exit_codes import ExitCode
from elastane.run.coordinator.nodes import describe_node, drain_workers
from elastane.run.coordinator.requests import order_node_to_leave
from elastane.run.coordinator.roster import FIRST_NODE, list_node_workers
from elastane.run.coordinator.turn import Turn
from elastane.run.machines.tickets.site_proofs import find_site_fault
from elastane.run.machines.tickets.ticket_files import UNKNOWN
from elastane.run.nouns.control import AgentReport, RunOver
from elastane.run.nouns.membership import NodeName, WorkerId

UNSEEN_S = 5.0
"""How long a new ticket may take to appear to the coordinator, which looks once a second."""


def refuse_unproven(turn: Turn, report: AgentReport) -> bool:
    """Refuse a new machine that may not take part at the sites that it names; return if it is refused."""
    nodes, name = turn.roster.nodes, report.node
    # One with workers has taken part before this coordinator: it leaves in order.
    if name == FIRST_NODE or name in nodes.reports or list_node_workers(report) or report.leaving:
        return False
    why = find_site_fault(turn.roster.site_tickets, report.ticket, report.sites, turn.wall_s)
    waits = _may_appear(turn, name, why)
    before = nodes.refused.get(name, "")
    refused = {other: reason for other, reason in nodes.refused.items() if other != name}
    refused |= {name: before if waits else why} if why and (before or not waits) else {}
    if refused != nodes.refused:
        turn.roster = replace(turn.roster, nodes=replace(turn.roster.nodes, refused=refused))
    if why and not waits:
        if why != before:
            turn.record("node.refused", who=describe_node(name), why=why)
        over = RunOver(code=ExitCode.BAD_INPUT, why=f"the run does not admit this machine: {why}")
        turn.send_to_agent(over, name)
    return bool(why)


def _may_appear(turn: Turn, name: NodeName, why: str) -> bool:
    """Return whether a machine has a ticket that the coordinator may not see yet; remember since when.

    Args:
        why: the fault of its proof.
    """
    nodes = turn.roster.nodes
    doubted = {other: time for other, time in nodes.doubted.items() if other != name}
    if why == UNKNOWN:
        doubted[name] = nodes.doubted.get(name, turn.now)
    if doubted != nodes.doubted:
        turn.roster = replace(turn.roster, nodes=replace(nodes, doubted=doubted))
    return why == UNKNOWN and turn.now - doubted[name] < UNSEEN_S


def release_unproven(turn: Turn) -> None:
    """Let a machine leave if its ticket was revoked or has expired, as after ``elastane drain``.

    Its workers leave the generations of the run also if its agent does not obey. One machine stays, so that
    the run goes on.
    """
    nodes = turn.roster.nodes
    if turn.roster.wanted.target is None:
        return
    staying = {name for name, report in nodes.reports.items() if not report.leaving} - nodes.drained
    for name, report in sorted(nodes.reports.items()):
        if name == FIRST_NODE or not report.ticket or report.leaving or not staying - {name}:
            continue
        why = find_site_fault(turn.roster.site_tickets, report.ticket, report.sites, turn.wall_s)
        # A coordinator that has taken over on another machine may see the ticket later.
        if not _may_appear(turn, name, why) and why:
            staying.discard(name)
            order_node_to_leave(turn, name, who="coordinator", because=f", because {why}")
            if members := _list_members(turn, report):
                drain_workers(turn, name, members)


def _list_members(turn: Turn, report: AgentReport) -> set[WorkerId]:
    """Return the members on a machine that are not asked to leave yet."""
    roster = turn.roster
    workers = () if roster.newest is None else roster.newest.workers
    here = roster.list_living(list_node_workers(report))
    return set(here).intersection(workers) - roster.wanted.draining
