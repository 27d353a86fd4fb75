"""The answer to ``elastane ps``: the coordinator's present view of the run."""

from elastane.api.control import Answer, ProcessInfo, WorkerReport
from elastane.api.membership import WorkerId
from elastane.coordinator.roster import Roster


def build_status(roster: Roster, *, ok: bool = True, why: str = "") -> Answer:
    at_work = roster.at_work
    return Answer(
        ok=ok,
        why=why,
        term=roster.term.number,
        generation=0 if at_work is None else at_work.number,
        step=roster.progress.step,
        steps=0 if roster.pinned is None else roster.pinned.steps,
        loss=roster.progress.loss,
        target=roster.wanted.target or 0,
        by_hand=roster.wanted.by_hand,
        state=describe_run_state(roster),
        processes=list_run_processes(roster),
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
    """Return the agent, the coordinators, the fork servers and the living workers, as last reported."""
    agent = roster.agent
    pids = {} if agent is None else {process.worker: process.pid for process in agent.workers}
    first = () if agent is None else (ProcessInfo(role="agent", pid=agent.pid, state="running"),)
    own = ProcessInfo(role="coordinator", pid=roster.term.pid, state=f"term {roster.term.number}")
    others = () if agent is None else agent.standby + agent.fork_servers
    workers = (
        _describe_worker(roster, worker, roster.reports.get(worker), pids.get(worker, 0))
        for worker in roster.started
    )
    return (*first, own, *others, *workers)


def _describe_worker(roster: Roster, worker: WorkerId, report: WorkerReport | None, pid: int) -> ProcessInfo:
    if report is None:
        return ProcessInfo(role="worker", pid=pid, worker=worker, state="starting")
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
    )
