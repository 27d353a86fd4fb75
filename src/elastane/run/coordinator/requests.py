"""Requests from the command line and the controller are carried out here; `refusals` says which cannot be."""

from dataclasses import replace
from typing import assert_never

from elastane.run.coordinator.actions import CommandRequest
from elastane.run.coordinator.checkpointing import request_checkpoint
from elastane.run.coordinator.event_summary import DRAINED_NODE
from elastane.run.coordinator.generations import list_leaving
from elastane.run.coordinator.nodes import describe_node
from elastane.run.coordinator.placement import list_open_nodes
from elastane.run.coordinator.refusals import Changeable, find_refusal
from elastane.run.coordinator.roster import Roster
from elastane.run.coordinator.status import build_status
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.control import (
    Ask,
    AskCheckpoint,
    AskDrain,
    AskDrainNode,
    AskEvict,
    AskResize,
    AskStatus,
    AskStop,
    KillWorker,
    StopTraining,
)
from elastane.run.nouns.membership import NodeName, WorkerId


def answer_request(turn: Turn, asked: CommandRequest) -> None:
    """Carry out a request, or answer with the reason for a refusal; a refusal changes nothing."""
    refusal = find_refusal(_describe_changeable(turn.roster), turn.roster.spec, asked.ask)
    if not refusal:
        _carry_out(turn, asked.ask)
    turn.reply(asked.token, build_status(turn.roster, ok=not refusal, why=refusal, time_s=turn.wall_s))


def _describe_changeable(roster: Roster) -> Changeable:
    reports = roster.nodes.reports
    is_ending = roster.stopping is not None or roster.finishing is not None
    return Changeable(
        over="" if roster.over is None else roster.over.why,
        ending="its workers make the last step" if is_ending else "",
        target=roster.wanted.target,
        workers=tuple(worker for worker in roster.started if worker not in roster.dismissed),
        draining=roster.wanted.draining,
        by_hand=roster.wanted.by_hand,
        virtual_ranks=None if roster.pinned is None else roster.pinned.virtual_ranks,
        no_checkpoint=""
        if roster.spec.checkpoints is not None
        else "this run takes no checkpoints: it was started with --checkpoint-every never",
        nodes=reports.keys(),
        leaving_nodes=roster.nodes.drained | {name for name, report in reports.items() if report.leaving},
    )


def _carry_out(turn: Turn, ask: Ask) -> None:
    match ask:
        case AskStatus():
            pass
        case AskResize():
            _resize(turn, ask)
        case AskDrain(worker=worker):
            _drain(turn, worker)
        case AskDrainNode(node=node):
            order_node_to_leave(turn, node)
        case AskEvict():
            _evict(turn)
        case AskStop():
            request_stop(turn, ask)
        case AskCheckpoint():
            request_checkpoint(turn)
        case _:
            assert_never(ask)


def _resize(turn: Turn, ask: AskResize) -> None:
    roster, workers, by_hand = turn.roster, ask.workers, ask.limits is None
    if workers != roster.wanted.target:
        who = "user" if by_hand else "controller"
        turn.record("resize.requested", who=who, why=f"from {roster.wanted.target} to {workers} workers")
        # A request for more workers also requests another try of the failed ones.
        turn.roster = replace(
            roster,
            troubles=replace(roster.troubles, failed_joins={}),
            nodes=replace(roster.nodes, closed={}),
        )
    elif by_hand == roster.wanted.by_hand:
        return
    turn.set_target(workers, roster.wanted.draining, by_hand=by_hand)


def _drain(turn: Turn, worker: WorkerId) -> None:
    roster = turn.roster
    if worker in roster.wanted.draining or roster.wanted.target is None:
        return
    turn.record("drain.requested", who="user", why=f"worker {worker} must leave", workers=(worker,))
    turn.set_target(roster.wanted.target - 1, roster.wanted.draining | {worker}, by_hand=True)


def drain_noticed(turn: Turn) -> None:
    """Let workers leave that have got a notice of their own; others replace them."""
    roster = turn.roster
    if roster.wanted.target is None or roster.stopping is not None or roster.finishing is not None:
        return
    ending = roster.wanted.draining | roster.dismissed.keys()
    leaving = roster.nodes.drained | {name for name, agent in roster.nodes.reports.items() if agent.leaving}
    noticed = [
        report
        for worker in roster.started
        if (report := roster.reports.get(worker)) is not None
        and report.notice
        and worker not in ending
        and report.node not in leaving
    ]
    for report in noticed:
        why = f"{report.notice} announces its end, and another worker replaces it"
        turn.record("drain.requested", who=f"worker {report.worker}", why=why, workers=(report.worker,))
    if noticed:
        turn.set_target(roster.wanted.target, roster.wanted.draining | {report.worker for report in noticed})


def order_node_to_leave(turn: Turn, node: NodeName, *, who: str = "user", because: str = "") -> None:
    """Order the agent of a node to leave; its next report says so, and lets the workers leave.

    Args:
        because: the reason, if no user has asked for it; completes "... must leave".
    """
    roster = turn.roster
    if node in roster.nodes.drained or roster.wanted.target is None:
        return
    # The next coordinator must know it too, even if this one dies before its order has gone out.
    why = f"{describe_node(node)} must leave{because}"
    turn.record("drain.requested", who=who, why=why, detail={DRAINED_NODE: node})
    turn.roster = replace(roster, nodes=replace(roster.nodes, drained=roster.nodes.drained | {node}))
    turn.set_target(roster.wanted.target, roster.wanted.draining)


def leave_wrong_place(turn: Turn, worker: WorkerId, node: NodeName) -> None:
    """Use the machine of a worker no more that a spot check has found wrong; the only one, with one less."""
    roster = turn.roster
    because = f", because a spot check found the results of worker {worker} wrong"
    if list_open_nodes(roster) - {node}:
        order_node_to_leave(turn, node, who="coordinator", because=because)
    elif roster.wanted.target is not None and roster.wanted.target > 1:
        turn.record("resize.requested", who="coordinator", why=f"no worker replaces it{because}")
        turn.set_target(roster.wanted.target - 1, roster.wanted.draining, by_hand=True)


def _evict(turn: Turn) -> None:
    """Kill workers that have not left in time; their deaths are handled when the agent reports them."""
    for worker in list_leaving(turn.roster):
        turn.send_to_agent(KillWorker(worker=worker, why="it was asked to leave and did not leave in time"))


def request_stop(turn: Turn, ask: AskStop) -> None:
    """End the run at the next commit; send members the request now and after each of their reports."""
    roster = turn.roster
    if roster.stopping is not None:
        return
    what = "the run stops after the present step"
    turn.record("stop.requested", who=ask.who, why=f"{what}. {ask.why}" if ask.why else what)
    turn.roster = replace(roster, stopping=ask)
    for worker in sorted(roster.list_living(roster.needed)):
        turn.send(worker, StopTraining())
