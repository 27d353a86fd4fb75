"""The bytes that cross between the machines of a run, as its workers have measured them."""

from collections.abc import Iterable
from dataclasses import replace

from elastane.run.coordinator.nodes import describe_node
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.control import TrafficBytes, WorkerReport
from elastane.run.nouns.membership import NodeName
from elastane.run.nouns.records import TRAFFIC
from elastane.run.observability.quantities import format_size


def record_traffic(turn: Turn) -> None:
    """Record once per generation what each of its machines exchanges with the others in a usual step."""
    roster, newest = turn.roster, turn.roster.newest
    if newest is None or newest.number <= roster.events.traffic_of or not roster.settled:
        return
    names = sorted({member.node for member in newest.members})
    if len(names) == 1:
        return
    reports = [roster.reports[worker] for worker in newest.workers if worker in roster.reports]
    if len(reports) < len(newest.members) or any(
        report.generation != newest.number or not report.complete or report.traffic is None
        for report in reports
    ):
        return
    for node, traffic in sum_by_node(reports).items():
        turn.record(
            TRAFFIC,
            who=describe_node(node),
            why=f"in a usual step it sends {format_size(traffic.sent)} to other machines, and receives "
            f"{format_size(traffic.received)}",
            workers=tuple(member.worker for member in newest.members if member.node == node),
            detail={"node": node, "sent_bytes": traffic.sent, "received_bytes": traffic.received},
        )
    events = replace(turn.roster.events, traffic_of=newest.number)
    turn.roster = replace(turn.roster, events=events)


def sum_by_node(reports: Iterable[WorkerReport]) -> dict[NodeName, TrafficBytes]:
    """Return what all measured workers of each machine exchange with other machines together."""
    found: dict[NodeName, TrafficBytes] = {}
    for report in reports:
        if report.traffic is not None:
            so_far = found.get(report.node, TrafficBytes(0, 0))
            found[report.node] = TrafficBytes(
                so_far.sent + report.traffic.sent, so_far.received + report.traffic.received
            )
    return dict(sorted(found.items()))
