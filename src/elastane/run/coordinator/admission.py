"""The admission of workers to the run, and the dismissal of workers that it does not need any more."""

import re
from collections.abc import Collection
from dataclasses import replace

import msgspec

from elastane.run.coordinator.nodes import describe_node, lower_target
from elastane.run.coordinator.placement import build_orders, list_open_nodes
from elastane.run.coordinator.roster import FIRST_NODE, Roster, Troubles, find_worker_node, list_node_workers
from elastane.run.coordinator.run_end import fail_run
from elastane.run.coordinator.turn import Turn
from elastane.run.machines.tickets.site_proofs import find_site_fault
from elastane.run.nouns.control import WorkerReport
from elastane.run.nouns.membership import NodeName, SiteName, WorkerId
from elastane.run.nouns.spec import Pinned, Probe

MOST_FAILED_JOINS = 3
EXPLANATIONS = {
    "optimizer": " (restore it; or resume with --accept-changes, and the run goes on with the new values)",
    "dataset_digest": " (the dataset has changed since the run began, or returns other samples for the same "
    "index here; restore it, or start a new run)",
    "sharing": " (these processes compute each microbatch together, and parts are rounded otherwise; divide "
    "the model as before; or resume with --accept-changes, and the run goes on with other bits)",
    "dataset_length": " (the dataset has changed since the run began; restore it, or start a new run)",
}
"""Explanations of differences, for fields with names that do not explain them."""
HYPERPARAMETER = re.compile(r"\b\w+=(?:\([^()]*\)|[^,()]*)")


def complete_pinned(pinned: Pinned, other: Pinned) -> Pinned:
    """Return the pinned facts with those of a worker in place of the ones that are not known yet."""
    if pinned.division is None:
        pinned = msgspec.structs.replace(pinned, division=other.division, blocks=other.blocks)
    if other.site_digests.keys() - pinned.site_digests.keys():
        digests = other.site_digests | pinned.site_digests
        pinned = msgspec.structs.replace(pinned, site_digests=digests)
    return pinned if pinned.probe else msgspec.structs.replace(pinned, probe=other.probe)


def describe_differences(pinned: Pinned, other: Pinned) -> str:
    """Describe the fields that differ, with both values and what to do; empty if none differs."""
    before, after = msgspec.structs.asdict(pinned), msgspec.structs.asdict(other)
    differences = [
        f"{name} is {_shorten(after[name], before[name])}, but the run's is "
        f"{_shorten(before[name], after[name])}{EXPLANATIONS.get(name, '')}"
        for name in before
        if name not in ("probe", "site_digests") and before[name] != after[name]
    ]
    differences += [
        f"the dataset of site {site} is another one than the run's{EXPLANATIONS['dataset_digest']}"
        for site, digest in other.site_digests.items()
        if pinned.site_digests.get(site, digest) != digest
    ]
    if differences:
        return "; ".join(differences)
    return describe_other_bits(pinned.probe, other.probe)


def _shorten(value: object, other: object) -> str:
    """Return a value; of an optimizer only the class and the hyperparameters that another one has not."""
    if not (isinstance(value, str) and isinstance(other, str)):
        return repr(value)
    known = set(HYPERPARAMETER.findall(other))
    own = [text for text in HYPERPARAMETER.findall(value) if text not in known]
    return f"{value.partition('(')[0]}({', '.join(own)})" if own and known else repr(value)


def describe_foreign_sites(pinned: Pinned, sites: Collection[SiteName]) -> str:
    """Describe why a worker may compute no virtual rank of the run; empty if it may compute some."""
    if not pinned.rank_sites or set(pinned.rank_sites).intersection(sites):
        return ""
    own = f"belongs to site {', '.join(sites)}" if sites else "belongs to no site"
    return (
        f"its machine {own}, and the data of the run is bound to {', '.join(sorted(set(pinned.rank_sites)))} "
        "(name its site: elastane join --site, or elastane run --site on the first machine)"
    )


def describe_other_bits(probe: Probe | None, other: Probe | None) -> str:
    """Describe why a machine computes other bits than the run's; empty if none or unknown."""
    if probe is None or other is None or probe.values != other.values or probe.result == other.result:
        return ""
    names = sorted(probe.machine.keys() | other.machine.keys())
    facts = [(name, other.machine.get(name, ""), probe.machine.get(name, "")) for name in names]
    reasons = [
        f"its {name} is {its or 'unknown'!r}, the run's is {of_run or 'unknown'!r}"
        for name, its, of_run in facts
        if its != of_run
    ] or ["no known fact differs between the two machines, so the script may compute something else there"]
    return (
        "its machine computes other bits from the same microbatch and the same values "
        f"(probe {other.result[:12]}, but the run's is {probe.result[:12]}): {'; '.join(reasons)} "
        "(use like machines, or start a new run with --numerics portable)"
    )


def admit(turn: Turn, worker: WorkerId, pinned: Pinned) -> bool:
    """Pin the run to the first worker's script, or refuse a worker with another script; return if it fits."""
    known = turn.roster.pinned
    complete = pinned if known is None else complete_pinned(known, pinned)
    differences = describe_differences(complete, pinned)
    differences = differences or describe_foreign_sites(pinned, turn.roster.reports[worker].sites)
    unproven = "" if differences else _describe_unproven_sites(turn, worker)
    differences = differences or unproven
    if not differences:
        if complete != known:
            turn.pin(complete)
        return True
    why = f"worker {worker} does not fit this run: {differences}"
    turn.record_worker_event("worker.refused", worker, why)
    turn.dismiss(worker, 1, why)
    roster = turn.roster
    accepted = {other for other, report in roster.reports.items() if report.pinned is not None} - {worker}
    can_begin_here = any(other not in roster.dismissed for other in roster.list_living(accepted))
    is_first = roster.newest is None and not can_begin_here
    if is_first and not (unproven or can_begin_elsewhere(roster, find_worker_node(roster, worker))):
        # All workers here run the same script with the same data, so the others would be refused too.
        fail_run(turn, why)
    return False


def _describe_unproven_sites(turn: Turn, worker: WorkerId) -> str:
    """Describe why a worker that has not joined may not be at the sites that it names; empty if it may."""
    roster, report = turn.roster, turn.roster.reports[worker]
    agent = roster.nodes.reports.get(report.node)
    # A worker that the agent of its machine does not name joins no generation, see `choose_joining`.
    if worker in roster.joined or agent is None or agent.node == FIRST_NODE:
        return ""
    return find_site_fault(roster.site_tickets, agent.ticket, report.sites, turn.wall_s)


def can_begin_elsewhere(roster: Roster, node: NodeName) -> bool:
    """Return whether workers start on another node, on which no worker's code has raised."""
    starting = {find_worker_node(roster, worker) for worker in roster.candidates}
    failed = {find_worker_node(roster, worker) for worker in roster.ends.failed}
    return bool(starting - failed - {node})


def count_failed_join(turn: Turn, node: NodeName, worker: WorkerId, how: str) -> None:
    """Count a worker that ended before it joined; after three in a row on a node, start no more there.

    If no other node can get workers, stop replacing or fail the run.
    """
    roster = turn.roster
    if roster.stopping is not None or roster.finishing is not None:
        return
    failures = roster.troubles.failed_joins.get(node, 0) + 1
    counts = {**roster.troubles.failed_joins, node: failures}
    turn.roster = replace(roster, troubles=replace(roster.troubles, failed_joins=counts))
    if failures < MOST_FAILED_JOINS or node in roster.nodes.closed:
        return
    if list_open_nodes(roster) - {node}:
        _close_node(turn, node, worker, how)
    else:
        _stop_replacing(turn, node, worker, how)


def forget_failed_joins(troubles: Troubles, node: NodeName) -> Troubles:
    """Return the signs of trouble after a worker of a node has joined."""
    counts = {other: count for other, count in troubles.failed_joins.items() if other != node}
    return replace(troubles, failed_joins=counts)


def _close_node(turn: Turn, node: NodeName, worker: WorkerId, how: str) -> None:
    """Start no further workers on a node. It keeps its members, and free slots of others take its places."""
    roster, target = turn.roster, turn.roster.wanted.target
    dismissal = roster.dismissed.get(worker)
    last = f"worker {worker}: {how}" if dismissal is None else dismissal.why
    why = (
        f"{describe_node(node)} gets no further workers: {MOST_FAILED_JOINS} in a row ended before they "
        f"joined; the last, {last}; see logs/worker-{worker}.log"
    )
    # An agent may not have reported its last order yet.
    targets = {name: order.target for name, order in build_orders(roster).items()}
    report = roster.nodes.reports.get(node)
    turn.roster = replace(
        roster,
        nodes=replace(roster.nodes, closed={**roster.nodes.closed, node: why}),
        troubles=forget_failed_joins(roster.troubles, node),
    )
    turn.record("node.closed", who=describe_node(node), why=why)
    if report is None or target is None:
        return
    members = roster.joined.intersection(roster.list_living(list_node_workers(report)))
    free = targets[node] - len(members - roster.wanted.draining)
    if free > 0:
        target = lower_target(turn.roster, target, free, without={node}, targets=targets)
    turn.set_target(target, roster.wanted.draining)


def _stop_replacing(turn: Turn, node: NodeName, worker: WorkerId, how: str) -> None:
    roster = turn.roster
    newest = roster.newest
    present = roster.list_living(newest.workers) if newest is not None else roster.ready
    story = f"{MOST_FAILED_JOINS} workers in a row ended before they joined; the last, worker {worker}: {how}"
    if not present or (newest is None and len(present) < roster.spec.min_workers):
        fail_run(turn, f"{story}; see logs/worker-{worker}.log")
        return
    turn.roster = replace(roster, troubles=forget_failed_joins(roster.troubles, node))
    turn.record("resize.requested", who="coordinator", why=f"{story}; the run continues with {len(present)}")
    turn.set_target(len(present), roster.wanted.draining)


def dismiss_surplus(turn: Turn) -> None:
    """Dismiss the workers that started for a place that has been filled, the newest first."""
    roster = turn.roster
    if roster.wanted.target is None:
        return
    for worker in roster.candidates:
        if worker in roster.wanted.draining:
            turn.dismiss(worker, 0, "asked to leave before it joined")
        elif find_worker_node(roster, worker) in roster.nodes.closed:
            turn.dismiss(worker, 0, "its machine gets no further workers")
    members = () if roster.newest is None else roster.list_living(roster.newest.workers)
    places = roster.wanted.target - sum(worker not in roster.wanted.draining for worker in members)
    for worker in turn.roster.candidates[max(0, places) :]:
        report = roster.reports.get(worker)
        # The agent of a lost node would only replace it; once it is heard, the run grows by its slots.
        if report is None or report.node not in roster.nodes.lost:
            turn.dismiss(worker, 0, "not needed any more: the run wants fewer workers")


def _is_writing(turn: Turn, report: WorkerReport) -> bool:
    """Return whether a part of a checkpoint would be lost with the worker; refused parts do not count."""
    return any(
        part.state == "writing" and part.name not in turn.roster.checkpoints.existing
        for part in report.checkpoints
    )


def dismiss_leavers(turn: Turn) -> None:
    """Dismiss members that left on request, once the others need nothing from them."""
    roster = turn.roster
    if roster.newest is None or not roster.needs_no_leavers:
        return
    for worker in roster.started:
        report = roster.reports.get(worker)
        left = worker not in roster.newest and worker not in roster.dismissed
        if left and report is not None and report.state == "leaving" and not _is_writing(turn, report):
            turn.dismiss(worker, 0, f"left with generation {roster.newest.number}")
