"""The nodes of a run: they join with their slots, leave on request, or are lost with all their workers.

Every node has an agent. The first one has no name; its agent starts the coordinators, so it is never lost
while one of them serves.
"""

from dataclasses import replace

from elastane.api.control import AgentReport
from elastane.api.membership import NodeName
from elastane.coordinator.deaths import exclude_worker, format_worker_list
from elastane.coordinator.placement import grant_numbers
from elastane.coordinator.roster import FIRST_NODE, list_node_workers
from elastane.coordinator.turn import Turn

SILENCE_S = 3.0
"""How long a node may be silent before it counts as lost; agents report once a second."""


def receive_agent_report(turn: Turn, report: AgentReport) -> None:
    """Remember the last report of a node's agent, and what it says about the number of workers."""
    roster = turn.roster
    nodes, name = roster.nodes, report.node
    if report.leaving and not report.workers and name not in nodes.reports:
        # It has left, and reports until its agent has ended.
        return
    ends = [end for _, end in report.numbers] + [worker + 1 for worker in list_node_workers(report)]
    nodes = replace(
        nodes,
        reports={**nodes.reports, name: report},
        heard={**nodes.heard, name: turn.now},
        numbers_end=max(nodes.numbers_end, *ends, 0),
    )
    # A new coordinator must know all numbers in use before it grants more.
    turn.roster = replace(roster, nodes=nodes if roster.term.listening else grant_numbers(nodes, name))
    if roster.wanted.target is None and (report.total or name == FIRST_NODE):
        wanted = replace(
            roster.wanted,
            target=report.total or report.target,
            draining=frozenset(report.draining),
            by_hand=report.by_hand,
        )
        turn.roster = replace(turn.roster, wanted=wanted)


def advance_nodes(turn: Turn) -> None:
    """Let nodes take part, leave or count as lost, as their agents' reports show."""
    for name, report in sorted(turn.roster.nodes.reports.items()):
        if name == FIRST_NODE or turn.roster.wanted.target is None:
            continue
        if turn.now - turn.roster.nodes.heard[name] >= SILENCE_S:
            _lose_node(turn, report)
        elif report.leaving:
            _drain_node(turn, report)
        elif name not in turn.roster.nodes.counted:
            _count_node(turn, report)


def _count_node(turn: Turn, report: AgentReport) -> None:
    """Let the run grow by the slots of a new node, within its limits."""
    roster, target = turn.roster, turn.roster.wanted.target
    first = roster.nodes.reports.get(FIRST_NODE)
    if target is None or first is None:
        return
    counted = roster.nodes.counted | {report.node}
    turn.roster = replace(roster, nodes=replace(roster.nodes, counted=counted))
    if report.node in {node.name for node in first.nodes}:
        # An earlier coordinator has done it.
        return
    slots = report.slots or 0
    most = roster.spec.max_workers if roster.pinned is None else roster.pinned.virtual_ranks
    wanted = max(target, min(target + slots, roster.spec.max_workers, most))
    turn.record("node.joined", who=f"node {report.node}", why=f"it takes part with up to {slots} workers")
    turn.set_target(wanted, roster.wanted.draining)


def _drain_node(turn: Turn, report: AgentReport) -> None:
    roster, target = turn.roster, turn.roster.wanted.target
    staying = set(roster.list_living(list_node_workers(report))) - roster.wanted.draining
    if not list_node_workers(report):
        _forget_node(turn, report.node)
        turn.record("node.left", who=f"node {report.node}", why="its user asked it to leave")
    elif staying and target is not None:
        workers = tuple(sorted(staying))
        why = f"node {report.node} leaves the run"
        turn.record("drain.requested", who=f"node {report.node}", why=why, workers=workers)
        turn.set_target(max(1, target - len(workers)), roster.wanted.draining | staying)


def _lose_node(turn: Turn, report: AgentReport) -> None:
    """Exclude all workers of a silent node at once."""
    roster, target, name = turn.roster, turn.roster.wanted.target, report.node
    workers = sorted(roster.list_living(list_node_workers(report)))
    what = f"its agent was silent for {turn.now - roster.nodes.heard[name]:.1f} s"
    lost = f"; with it {format_worker_list(workers)}" if workers else ""
    turn.record("node.lost", who=f"node {name}", why=f"{what}{lost}", workers=workers)
    for worker in workers:
        exclude_worker(turn, worker, f"its node {name} was lost", since=turn.now)
    _forget_node(turn, name)
    if target is not None and report.target:
        turn.set_target(max(1, target - report.target), roster.wanted.draining)


def _forget_node(turn: Turn, name: NodeName) -> None:
    nodes = turn.roster.nodes
    turn.roster = replace(
        turn.roster,
        nodes=replace(
            nodes,
            reports={other: report for other, report in nodes.reports.items() if other != name},
            heard={other: time for other, time in nodes.heard.items() if other != name},
            counted=nodes.counted - {name},
            granted={other: numbers for other, numbers in nodes.granted.items() if other != name},
        ),
    )
