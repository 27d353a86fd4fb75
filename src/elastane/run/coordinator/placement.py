"""The placement of a run's workers on its nodes: their number on each, their numbers, and their order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from elastane.run.coordinator.roster import Nodes, Roster, list_node_workers
from elastane.run.nouns.control import AgentReport, SetTarget
from elastane.run.nouns.membership import NUMBERS_AT_ONCE, Member, NodeAddress, NodeName, WorkerId

FEW_NUMBERS = 20
NO_SLOTS = (
    "no machine with slots stays, so the workers that should leave train on until another machine joins; "
    "to end the run, use `elastane stop`"
)
"""What the user of a run must know while `lacks_slots`."""


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The present workers of a node.

    Args:
        slots: the most workers that it runs; None: without limit.
        workers: its living workers, without those that are leaving.
    """

    slots: int | None
    workers: frozenset[WorkerId]


def deal_target(total: int, loads: Mapping[NodeName, NodeLoad]) -> dict[NodeName, int]:
    """Return how many workers each node should run.

    Workers stay where they are; if there are too many, those with the highest numbers leave. Missing ones go
    to nodes with free slots, and only then to a node without limit.
    """
    living = sorted(worker for load in loads.values() for worker in load.workers)
    staying = frozenset(living[:total])
    target = {name: len(load.workers & staying) for name, load in loads.items()}
    missing = total - len(staying)
    for name in sorted(loads, key=lambda name: (loads[name].slots is None, name)):
        slots = loads[name].slots
        more = missing if slots is None else max(0, min(missing, slots - target[name]))
        target[name] += more
        missing -= more
    return target


def order_members(members: Iterable[Member], number: int) -> tuple[Member, ...]:
    """Return the members of a generation node by node, so that a node computes neighbouring virtual ranks.

    The node of the member that has been in the run longest comes first; within a node the oldest member does.
    Members of the same age keep their order, so on one node nothing moves.

    Args:
        members: the members; those that join have no first generation yet.
    """
    dated = [member if member.since else msgspec.structs.replace(member, since=number) for member in members]
    dated.sort(key=lambda member: member.since)
    nodes = list(dict.fromkeys(member.node for member in dated))
    return tuple(sorted(dated, key=lambda member: nodes.index(member.node)))


def grant_numbers(nodes: Nodes, name: NodeName) -> Nodes:
    """Grant a node more numbers for its workers if it has few left, above all those of any node.

    A grant is repeated until the agent has reported it.
    """
    left = sum(end - first for first, end in nodes.reports[name].numbers)
    others = {other: numbers for other, numbers in nodes.granted.items() if other != name}
    if left >= FEW_NUMBERS:
        return replace(nodes, granted=others) if name in nodes.granted else nodes
    if name in nodes.granted:
        return nodes
    first = -(-nodes.numbers_end // NUMBERS_AT_ONCE) * NUMBERS_AT_ONCE
    end = first + NUMBERS_AT_ONCE
    return replace(nodes, granted={**others, name: (first, end)}, numbers_end=end)


def list_node_addresses(roster: Roster) -> tuple[NodeAddress, ...]:
    """Return the machines of a run by name, as their agents last reported.

    A machine that only other agents have reported to this term stays among them until it counts as lost: the
    next coordinator must know of it, and the agents ask it before they take over.
    """
    reports, lost = roster.nodes.reports, roster.nodes.lost
    # Most agents report one list, and `elastane.run.coordinator.connections` makes it one object. The last
    # report comes first: its address of a machine counts.
    lists = {id(report.nodes): report.nodes for report in tuple(reports.values())[::-1]}
    named: dict[NodeName, NodeAddress] = {}
    for node in chain.from_iterable(lists.values()):
        if node.name not in lost:
            named.setdefault(node.name, node)
    own = {name: NodeAddress(name, report.host, report.port) for name, report in reports.items()}
    return tuple(address for _, address in sorted({**named, **own}.items()))


def lacks_slots(roster: Roster) -> bool:
    """Return whether all machines that can have workers are to leave, while workers are at work."""
    nodes = roster.nodes
    staying = [
        report for name, report in nodes.reports.items() if name not in nodes.drained and not report.leaving
    ]
    return (
        roster.newest is not None
        and roster.stopping is None
        and roster.finishing is None
        and bool(staying)
        and all(report.slots == 0 for report in staying)
    )


def list_open_nodes(roster: Roster) -> frozenset[NodeName]:
    """Return the nodes that can get further workers, now or once some of theirs have ended."""
    return frozenset(
        name
        for name, report in roster.nodes.reports.items()
        if report.slots != 0 and not report.leaving and name not in roster.nodes.closed
    )


def build_orders(roster: Roster) -> dict[NodeName, SetTarget]:
    """Return the present order for the agent of every node; none while the number of workers is unknown."""
    total = roster.wanted.target
    if total is None:
        return {}
    loads = _measure_loads(roster)
    # Members on a node that has not reported yet must not be replaced before it counts as lost.
    members = () if roster.newest is None else roster.newest.members
    unreported = [member.worker for member in members if member.node not in roster.nodes.reports]
    elsewhere = len(roster.list_living(unreported))
    targets = deal_target(max(0, total - elsewhere), loads)
    nodes = list_node_addresses(roster)
    return {
        name: SetTarget(
            target=target,
            drain=roster.list_living(sorted(roster.wanted.draining)),
            by_hand=roster.wanted.by_hand,
            total=total,
            nodes=nodes,
            numbers=roster.nodes.granted.get(name),
            # The last node has none to leave the run to.
            leave=name in roster.nodes.drained and len(targets) > 1,
            claimed=roster.claiming.newest,
            closed=roster.nodes.closed.get(name, ""),
        )
        for name, target in targets.items()
    }


def is_order_known(report: AgentReport, order: SetTarget) -> bool:
    """Return whether the agent has carried out this order."""
    return (
        order.numbers is None
        and (report.leaving or not order.leave)
        and (report.target, report.total, report.nodes) == (order.target, order.total, order.nodes)
        and report.claimed == order.claimed
        and report.closed == order.closed
        and set(report.draining) == set(order.drain)
    )


def _measure_loads(roster: Roster) -> dict[NodeName, NodeLoad]:
    leaving, closed = roster.wanted.draining | roster.dismissed.keys(), roster.nodes.closed
    starting = frozenset(roster.candidates)
    return {
        name: NodeLoad(
            0 if report.leaving or name in closed else report.slots,
            frozenset(roster.list_living(list_node_workers(report)))
            - leaving
            - (starting if name in closed else frozenset()),
        )
        for name, report in roster.nodes.reports.items()
    }
