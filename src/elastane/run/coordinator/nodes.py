"""The nodes of a run: they join with their slots, leave on request, or are lost with all their workers.

Every node has an agent. The one on which the run began has no name; otherwise it is a node like the others.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import inf

from elastane.run.coordinator.claiming import record_postponement
from elastane.run.coordinator.deaths import exclude_worker, format_worker_list
from elastane.run.coordinator.event_summary import FIRST_NODE_PHRASE
from elastane.run.coordinator.hearing import (
    awaits_list,
    awaits_signs,
    find_sign,
    find_vote,
    is_in_minority,
    list_unplaced,
)
from elastane.run.coordinator.placement import NO_SLOTS, grant_numbers, lacks_slots, list_open_nodes
from elastane.run.coordinator.roster import (
    Roster,
    find_forgotten_workers,
    find_worker_node,
    list_named_nodes,
    list_node_workers,
)
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.control import AgentReport, HandOver, LeaveRecorded
from elastane.run.nouns.membership import NodeName, WorkerId


def receive_agent_report(turn: Turn, report: AgentReport) -> None:
    """Remember the last report of a node's agent, and what it says about the number of workers."""
    roster = turn.roster
    nodes, name = roster.nodes, report.node
    if report.leaving and not report.workers and name not in nodes.reports:
        # It has left, and reports until its agent knows that this is recorded.
        turn.send_to_agent(LeaveRecorded(), name)
        return
    closed = nodes.closed
    if report.closed and name not in nodes.reports:
        # An earlier coordinator has closed it.
        closed = {**closed, name: report.closed}
    ends = [end for _, end in report.numbers] + [worker + 1 for worker in list_node_workers(report)]
    nodes = replace(
        nodes,
        reports={**nodes.reports, name: report},
        heard={**nodes.heard, name: turn.now},
        numbers_end=max(nodes.numbers_end, *ends, 0),
        closed=closed,
    )
    is_first = roster.wanted.target is None and not report.total and not report.joins
    if is_first:
        # The number of workers with which the run begins includes those of this node.
        nodes = replace(nodes, counted=nodes.counted | {name})
    # A new coordinator must know all numbers in use before it grants more, also those of the first node.
    is_new = roster.term.listening or (roster.wanted.target is None and not is_first)
    turn.roster = replace(roster, nodes=nodes if is_new else grant_numbers(nodes, name))
    if is_first or (roster.wanted.target is None and report.total):
        wanted = replace(
            roster.wanted,
            target=report.total or report.target,
            draining=frozenset(report.draining),
            by_hand=report.by_hand,
        )
        turn.roster = replace(turn.roster, wanted=wanted)


def advance_nodes(turn: Turn) -> None:
    """Let nodes take part, leave or count as lost, as their agents' reports show."""
    if turn.roster.wanted.target is None:
        return
    _watch_silence(turn)
    _reopen_nodes(turn)
    nodes, now, limit_s = turn.roster.nodes, turn.now, turn.roster.spec.silence.limit_s
    silent = {
        name for name, report in nodes.reports.items() if now - find_sign(turn.roster, report) >= limit_s
    }
    # A coordinator that hears no node at all is cut off itself. When the network heals, the workers of a node
    # may be heard before its agent.
    is_cut_off = not silent < nodes.reports.keys() or awaits_list(turn.roster, now)
    may_lose = not (is_cut_off or awaits_signs(turn.roster, now))
    missing = _list_missing(turn.roster, now)
    if silent or missing:
        unheard = " and ".join(map(describe_node, sorted({*silent, *missing})))
        record_postponement(turn, f"nothing is heard of {unheard}")
    if missing and may_lose:
        _lose_missing_nodes(turn, missing)
    elif may_lose and now - turn.roster.term.began >= limit_s:
        _exclude_unplaced(turn)
    for name, report in sorted(nodes.reports.items()):
        if name in silent:
            if may_lose:
                _lose_node(turn, report)
        elif report.leaving:
            _drain_node(turn, report)
        elif name not in turn.roster.nodes.counted:
            _count_node(turn, report)


def _reopen_nodes(turn: Turn) -> None:
    """Let closed nodes get workers again once no other node can; see `count_failed_join`."""
    roster = turn.roster
    # A new coordinator may not have heard the others yet.
    is_new = turn.now - roster.term.began < roster.spec.silence.limit_s
    if not roster.nodes.closed or roster.wanted.target is None or is_new or list_open_nodes(roster):
        return
    turn.roster = replace(roster, nodes=replace(roster.nodes, closed={}))
    turn.set_target(roster.wanted.target, roster.wanted.draining)


def _count_node(turn: Turn, report: AgentReport) -> None:
    """Let the run grow by the slots of a new node, within its limits."""
    roster, target = turn.roster, turn.roster.wanted.target
    if target is None:
        return
    nodes = roster.nodes
    others = [other for other in nodes.reports.values() if other.node != report.node] or [report]
    turn.roster = replace(
        roster,
        nodes=replace(nodes, counted=nodes.counted | {report.node}, lost=nodes.lost - {report.node}),
    )
    is_known = any(report.node in list_named_nodes(other) for other in others)
    if is_known and report.node not in nodes.lost:
        # An earlier coordinator has done it.
        return
    # A node without a limit gets as many workers as it had.
    slots = report.target if report.slots is None else report.slots
    most = roster.spec.max_workers if roster.pinned is None else roster.pinned.virtual_ranks
    wanted = max(target, min(target + slots, roster.spec.max_workers, most))
    turn.record(
        "node.joined",
        who=describe_node(report.node),
        why=f"it takes part with up to {slots} workers",
        detail={"ticket": report.ticket.partition(".")[0]} if report.ticket else {},
    )
    turn.set_target(wanted, roster.wanted.draining)


def _drain_node(turn: Turn, report: AgentReport) -> None:
    roster, target = turn.roster, turn.roster.wanted.target
    staying = set(roster.list_living(list_node_workers(report))) - roster.wanted.draining
    if not list_node_workers(report):
        _forget_node(turn, report.node)
        # Other agents name it until their next orders.
        nodes = turn.roster.nodes
        turn.roster = replace(turn.roster, nodes=replace(nodes, lost=nodes.lost | {report.node}))
        why = "it gets no further workers, and has none" if report.closed else "its user asked it to leave"
        turn.record("node.left", who=describe_node(report.node), why=why)
        if target is not None:
            # This coordinator may end with the node; the next one must not miss the node.
            turn.set_target(target, roster.wanted.draining)
        if report.node == roster.term.node and (successor := choose_successor(turn.roster)) is not None:
            turn.send_to_agent(HandOver(), successor)
        turn.send_to_agent(LeaveRecorded(), report.node)
    elif staying:
        drain_workers(turn, report.node, staying)


def choose_successor(roster: Roster) -> NodeName | None:
    """Return the node that is to be in charge after this one, which has left: the one with the most workers.

    None: no node stays that gets workers. If the order is lost, the agents find a successor by themselves, as
    after a death.
    """
    staying = [report for report in roster.nodes.reports.values() if not (report.leaving or report.closed)]
    by_workers = sorted(staying, key=lambda report: (-len(list_node_workers(report)), report.node))
    return by_workers[0].node if by_workers else None


def drain_workers(turn: Turn, node: NodeName, workers: Collection[WorkerId]) -> None:
    """Let workers leave with their node; other nodes take its place as far as they have slots."""
    roster, target = turn.roster, turn.roster.wanted.target
    if target is None:
        return
    why = f"{describe_node(node)} leaves the run"
    if lacks_slots(roster):
        why += f"; {NO_SLOTS}"
    turn.record("drain.requested", who=describe_node(node), why=why, workers=sorted(workers))
    wanted = lower_target(roster, target, len(workers), without={node})
    turn.set_target(wanted, roster.wanted.draining.union(workers))


def _lose_node(turn: Turn, report: AgentReport) -> None:
    """Exclude all workers of a silent node at once."""
    silent_s = turn.now - find_sign(turn.roster, report)
    _exclude_workers(turn, report.node, list_node_workers(report), silent_s)
    target = turn.roster.wanted.target
    _forget_node(turn, report.node)
    nodes = turn.roster.nodes
    turn.roster = replace(turn.roster, nodes=replace(nodes, lost=nodes.lost | {report.node}))
    if target is not None and report.target:
        wanted = lower_target(turn.roster, target, report.target, without={report.node})
        turn.set_target(wanted, turn.roster.wanted.draining)


def lower_target(
    roster: Roster,
    target: int,
    fewer: int,
    *,
    without: Collection[NodeName],
    targets: Mapping[NodeName, int] | None = None,
) -> int:
    """Return the number of workers after some nodes have gone; at least 1.

    A node that joined when the run had its most workers has free slots, which now take the place of those
    that went. A number that a user has set by hand only falls.

    Args:
        target: the number of workers before.
        fewer: the workers of the nodes that go.
        without: these nodes.
        targets: the numbers of workers of the nodes; None: as they have reported.
    """
    free = sum(
        max(0, report.slots - (report.target if targets is None else targets[name]))
        for name, report in roster.nodes.reports.items()
        if name not in without
        and report.slots is not None
        and not report.leaving
        and name not in roster.nodes.closed
    )
    return max(1, target - fewer + (0 if roster.wanted.by_hand else min(fewer, free)))


def _list_missing(roster: Roster, now: float) -> tuple[NodeName, ...]:
    """Return the nodes that this coordinator knows only from other agents, and that take part in no step."""
    nodes = roster.nodes
    voting = {
        find_worker_node(roster, worker)
        for worker in roster.needed
        if now - find_vote(roster, worker) < roster.spec.silence.limit_s
    }
    named = frozenset().union(*map(list_named_nodes, nodes.reports.values()))
    return tuple(sorted(named - nodes.reports.keys() - nodes.lost - voting))


def _lose_missing_nodes(turn: Turn, missing: tuple[NodeName, ...]) -> None:
    """Exclude all workers that no agent has reported, once each node that may run them counts as lost.

    The node from which this term took over has been silent for the limit already: so the term began. See
    `Takeover.follows_new` for an exception. If steps are still made, it may take part in them.
    """
    roster = turn.roster
    silent_s = turn.now - roster.term.began
    takeover = roster.term.takeover
    waits_for = [name for name in missing if name != takeover.from_node or takeover.follows_new]
    is_early = silent_s < roster.spec.silence.limit_s
    if is_early and (waits_for or roster.progress.advanced_s > roster.term.began):
        return
    workers = list_unplaced(roster, roster.needed, turn.now)
    for name in missing:
        # Which of the lost nodes a worker was on is not known.
        _exclude_workers(turn, name, workers, silent_s)
        workers = ()
    reports = turn.roster.nodes.reports.values()
    total = max((report.total for report in reports), default=0)
    target = turn.roster.wanted.target
    lost = total - sum(report.target for report in reports)
    turn.roster = replace(
        turn.roster, nodes=replace(turn.roster.nodes, lost=turn.roster.nodes.lost.union(missing))
    )
    if target is not None and lost > 0:
        wanted = lower_target(turn.roster, target, lost, without=missing)
        turn.set_target(wanted, turn.roster.wanted.draining)


def _exclude_unplaced(turn: Turn) -> None:
    """Exclude workers that no node has and that are silent.

    An earlier coordinator has lost their node and told the agents, but not the members: another one had
    claimed a higher term by then. Or it did not live to write their ends.
    """
    roster = turn.roster
    for worker in list_unplaced(roster, roster.needed | find_forgotten_workers(roster), turn.now):
        exclude_worker(turn, worker, "no node of the run has it any more", since=turn.now)


def _exclude_workers(turn: Turn, name: NodeName, workers: Iterable[WorkerId], silent_s: float) -> None:
    living = sorted(turn.roster.list_living(workers))
    what = f"its agent was silent for {silent_s:.1f} s"
    lost = f"; with it {format_worker_list(living)}" if living else ""
    turn.record("node.lost", who=describe_node(name), why=f"{what}{lost}", workers=living)
    for worker in living:
        exclude_worker(turn, worker, f"{describe_node(name)} was lost", since=turn.now)


def describe_node(name: NodeName) -> str:
    """Return "node NAME"; the first node of a run has no name."""
    return f"node {name}" if name else FIRST_NODE_PHRASE


def _watch_silence(turn: Turn) -> None:
    """Remember until when this coordinator waited in a smaller part of the run.

    The silence of the others was its own then. If they are not heard in this time, it was theirs.
    """
    roster, now = turn.roster, turn.now
    # A new coordinator has not heard the others yet.
    if now - roster.term.began < roster.spec.silence.limit_s or not is_in_minority(roster, now):
        return
    minority_s = now if awaits_signs(roster, now) else -inf
    turn.roster = replace(roster, nodes=replace(roster.nodes, minority_s=minority_s))


def _forget_node(turn: Turn, name: NodeName) -> None:
    nodes = turn.roster.nodes
    turn.roster = replace(
        turn.roster,
        nodes=replace(
            nodes,
            reports={other: report for other, report in nodes.reports.items() if other != name},
            heard={other: time for other, time in nodes.heard.items() if other != name},
            counted=nodes.counted - {name},
            drained=nodes.drained - {name},
            closed={other: why for other, why in nodes.closed.items() if other != name},
            granted={other: numbers for other, numbers in nodes.granted.items() if other != name},
        ),
    )
