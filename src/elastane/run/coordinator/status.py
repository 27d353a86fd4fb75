"""The answer to ``elastane ps``: the coordinator's present view of the run."""

import msgspec

from elastane.run.coordinator.placement import NO_SLOTS, lacks_slots, list_node_addresses
from elastane.run.coordinator.roster import Roster
from elastane.run.coordinator.sites import describe_awaited_sites
from elastane.run.nouns.control import AgentReport, Answer, ProcessInfo, WorkerReport
from elastane.run.nouns.membership import NodeName, WorkerId

SAVING = ("copied", "writing", "failing")
"""The states of a part of a checkpoint that is not written yet."""
UNSEEN = ProcessInfo(role="worker", pid=0)


def build_status(roster: Roster, *, ok: bool = True, why: str = "", time_s: float = 0.0) -> Answer:
    """Return the present state of a run, as the answer to a request at a Unix time in seconds."""
    at_work = roster.at_work
    return Answer(
        ok=ok,
        why=why,
        note=NO_SLOTS if lacks_slots(roster) else describe_awaited_sites(roster),
        term=roster.term.number,
        generation=0 if at_work is None else at_work.number,
        step=roster.progress.step,
        steps=0 if roster.pinned is None else roster.pinned.steps,
        loss=roster.progress.loss,
        target=roster.wanted.target or 0,
        by_hand=roster.wanted.by_hand,
        state=describe_run_state(roster),
        processes=list_run_processes(roster),
        nodes=list_node_addresses(roster),
        time_s=time_s,
        spec=roster.spec,
    )


def describe_run_state(roster: Roster) -> str:
    """Return one word for the state of the whole run."""
    if roster.over is not None:
        return "over"
    if roster.finishing is not None:
        return "finishing"
    if roster.stopping is not None:
        return "stopping"
    if roster.newest is None:
        return "listening" if roster.term.listening else "starting"
    return "training" if roster.settled else "changing"


def list_run_processes(roster: Roster) -> tuple[ProcessInfo, ...]:
    """Return the agents, the coordinators, the fork servers and the living workers, as last reported."""
    agents = [report for _, report in sorted(roster.nodes.reports.items())]
    seen = {process.worker: (process, agent.node) for agent in agents for process in agent.workers}
    running = [_describe_agent(roster, agent) for agent in agents]
    own = ProcessInfo(
        role="coordinator",
        pid=roster.term.pid,
        state=f"term {roster.term.number}",
        node=roster.term.node,
    )
    others = [
        msgspec.structs.replace(process, node=agent.node)
        for agent in agents
        for process in agent.standby + agent.fork_servers
    ]
    workers = (
        _describe_worker(roster, worker, roster.reports.get(worker), *seen.get(worker, (UNSEEN, "")))
        for worker in roster.started
    )
    return (*running[:1], own, *running[1:], *others, *workers)


def _describe_agent(roster: Roster, agent: AgentReport) -> ProcessInfo:
    is_leaving = agent.leaving or agent.node in roster.nodes.drained
    state = "leaving" if is_leaving else "running"
    return ProcessInfo(role="agent", pid=agent.pid, state=state, node=agent.node)


def _describe_worker(
    roster: Roster, worker: WorkerId, report: WorkerReport | None, seen: ProcessInfo, node: NodeName
) -> ProcessInfo:
    """Return a worker as it reports itself, with what its agent has seen."""
    if report is None:
        return msgspec.structs.replace(seen, worker=worker, state="starting", node=node)
    state: str = report.state
    if worker in roster.wanted.draining and state == "member":
        state = "draining"
    elif worker not in roster.connected:
        state = "unreachable"
    return ProcessInfo(
        role="worker",
        pid=report.pid,
        worker=worker,
        generation=report.generation,
        virtual_ranks=report.virtual_ranks,
        blocks=report.blocks,
        state=state,
        node=node,
        sent_bytes=None if report.traffic is None else report.traffic.sent,
        received_bytes=None if report.traffic is None else report.traffic.received,
        activity=seen.activity,
        silent_s=seen.silent_s,
        compute_s=report.compute_s,
        saving=any(part.state in SAVING for part in report.checkpoints),
        further=seen.further,
        sites=report.sites,
        crossings=report.crossings,
    )
