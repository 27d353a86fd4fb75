"""Supervision of a run: one attempt, and another from a checkpoint whenever all state is lost."""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from elastane.common.errors import ElastaneError, RunDirectoryLost, RunFailed
from elastane.common.exit_codes import ExitCode
from elastane.run.attempts.display import AttemptView, Display
from elastane.run.attempts.interrupts import Interrupts, describe_signal, watch_signals
from elastane.run.attempts.results import write_final_event
from elastane.run.attempts.resumption import STATE_LOST, prepare_resumption
from elastane.run.attempts.tracking import TrackerKeeper
from elastane.run.connections.run_certificate import compute_fingerprint, read_certificate
from elastane.run.machines.agents.remote_joins import RemoteJoins
from elastane.run.machines.tickets.ticket_files import issue_ticket
from elastane.run.machines.tickets.tickets import encode_ticket
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.hosts import find_own_host
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.nouns.membership import NodeAddress
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord

if TYPE_CHECKING:
    from elastane.run.agent.agent import Agent
    from elastane.run.scripts.agent.script_agent import ScriptAgent

MOST_FUTILE_ATTEMPTS = 3
JOINS_END_S = 5.0
"""How long the ends of the other machines of ``--hosts`` may take after that of this one."""
ENDED_GRACE_S, STOPPED_GRACE_S = 30.0, 5.0
"""The seconds for trackers to catch up at the end. The devices of a stopped run may be needed elsewhere."""


def run_to_end(run_dir: RunDir, record: RunRecord, display: Display) -> RunOver | None:
    """Run to the end and return the outcome. The caller holds the lock of the run directory.

    Returns:
        The outcome; None: this machine has left the run, which goes on on other ones.

    Raises:
        RunFailed: the processes cannot be started, or the run directory was lost.
    """
    with watch_signals() as signals, TrackerKeeper(run_dir, record.spec.log, display.say) as trackers:
        over = _run_attempts(run_dir, record, display, signals)
        # If this machine has left the run, the one in charge feeds them from now on.
        if over is not None:
            trackers.finish(choose_grace(over))
    return over


def choose_grace(over: RunOver) -> float:
    """Return how long trackers may catch up at the end of a run, in seconds."""
    return STOPPED_GRACE_S if over.code == ExitCode.STOPPED_BY_USER else ENDED_GRACE_S


def _run_attempts(
    run_dir: RunDir, record: RunRecord, display: Display, signals: Interrupts
) -> RunOver | None:
    """Run one attempt after the other until one ends with its state, or without this machine."""
    futile = 0
    while True:
        try:
            over, wanted = asyncio.run(train_attempt(run_dir, record, display, signals))
        except RunDirectoryLost as lost:
            # Nothing is written to the old path: it may belong to another run now.
            if lost.moved_to is not None:
                _record_end_elsewhere(RunDir(lost.moved_to), lost, display)
            raise
        if over is None:
            return None
        try:
            write_final_event(run_dir, over)
        except (OSError, ElastaneError) as error:
            display.say(f"cannot record the end of the run: {error}")
        # After a notice there is no time for another attempt. Without a shared directory the controller of
        # the job decides where the next one begins.
        is_last = record.spec.debug or signals.stopping or run_dir.is_private
        if not over.lost or futile == MOST_FUTILE_ATTEMPTS or is_last:
            return over
        # Devices that the run has given back meanwhile belong to other jobs.
        spec = msgspec.structs.replace(record.spec, start=wanted)
        try:
            following = prepare_resumption(run_dir, spec, display.say, why=STATE_LOST)
        except ElastaneError as error:
            display.say(f"cannot resume: {error}")
            return over
        futile, record = count_futile(futile, record, following), following


def count_futile(futile: int, last: RunRecord, following: RunRecord) -> int:
    """Return how many attempts in a row have died before their first new checkpoint.

    The next one would probably do so again.

    Args:
        futile: how many had before the last one.
        following: the record of the next one, which begins from a checkpoint.
    """
    before = last.resumed.step if last.resumed is not None else 0
    return futile + 1 if following.resumed is not None and following.resumed.step <= before else 0


def _record_end_elsewhere(run_dir: RunDir, lost: RunDirectoryLost, display: Display) -> None:
    """Record in the moved directory why the run ended."""
    try:
        write_final_event(run_dir, RunOver(code=1, why=lost.what))
        run_dir.endpoint.unlink(missing_ok=True)
    except (OSError, ElastaneError) as error:
        display.say(f"cannot record the end of the run: {error}")


def build_start_error(run_dir: RunDir, error: OSError) -> RunFailed:
    return RunFailed(
        f"cannot start the processes of the run in {run_dir.root}: {error}",
        means="this machine refuses something that they need, such as open files, memory or disk space",
        do="raise the limit that the reason names (ulimit -a shows all), or free some space; try again",
    )


async def train_attempt(
    run_dir: RunDir, record: RunRecord, display: Display, signals: Interrupts
) -> tuple[RunOver | None, int]:
    """Run one attempt. A notice or Ctrl-C stops it at the next commit, a second Ctrl-C kills it.

    In a run on several machines SIGHUP, at the end of the terminal, lets this machine leave.

    Returns:
        The outcome, which is None if this machine has left; and the last wanted number of workers.

    Raises:
        RunFailed: the processes cannot be started, or this machine has left because something failed on it.
    """
    from elastane.run.machines.agents.node_agent import NodeAgent

    joins = RemoteJoins(record.spec.ssh, run_dir, display.say)
    agent = _create_agent(run_dir, record, display, joins)
    view = display.view(record)

    def stop(name: str) -> None:
        # A notice to one machine of a job is for this machine only; one to a user's command is for the run.
        is_for_machine = name == "SIGHUP" or record.typed is None
        leaver = agent if isinstance(agent, NodeAgent) and is_for_machine else None
        how = "at the next commit" if record.spec.contract is None else "when the script has saved"
        again = "press Ctrl-C again" if name == "SIGINT" else "press Ctrl-C twice"
        what = "stopping" if leaver is None else "leaving the run"
        view.say(f"{describe_signal(name)}{what} {how}; {again} to end at once")
        if leaver is None:
            agent.stop()
        else:
            leaver.leave()

    def kill() -> None:
        where = " on this machine" if record.spec.listen else ""
        view.say(f"ending all processes of the run{where}")
        agent.kill()

    showing = asyncio.create_task(view.follow())
    try:
        with signals.guide(stop, kill):
            over = await agent.run()
    except OSError as error:
        raise build_start_error(run_dir, error) from error
    finally:
        await close_view(showing, view, display)
        await joins.finish(0.0 if isinstance(agent, NodeAgent) and agent.left else JOINS_END_S)
    if isinstance(agent, NodeAgent) and agent.left:
        if over.code not in (ExitCode.OK, ExitCode.STOPPED_BY_USER):
            raise RunFailed(
                f"this machine has left the run in {run_dir.root}: {over.why}",
                means="its workers have ended; the run goes on if a coordinator of another machine answers",
                do=f"elastane ps {run_dir.root} shows that; elastane join {run_dir.root} to take part again",
            )
        return None, agent.target
    # The user killed the run before it could record its outcome; that counts as stopped, not as failed.
    if signals.killed and over.code != 0:
        over = msgspec.structs.replace(over, code=ExitCode.STOPPED_BY_USER, traceback="")
    return over, agent.target


def _create_agent(
    run_dir: RunDir, record: RunRecord, display: Display, joins: RemoteJoins
) -> "Agent | ScriptAgent":
    spec = record.spec
    if spec.listen:
        from elastane.run.machines.agents.node_agent import NodeAgent

        own = find_own_host(spec.hosts)
        others = tuple(host for host in spec.hosts if host != own)

        def invite(address: NodeAddress) -> None:
            if record.typed is None:
                # The controller of a job tells its other machines what to do.
                return
            ticket = issue_first_ticket(run_dir, address)
            display.say(f"on other machines: elastane join {ticket}")
            joins.start(others, ticket, fail)

        def fail(why: str) -> None:
            # With workers here the run goes on without the others.
            if own is None and agent.is_last:
                agent.finish(RunOver(code=ExitCode.FAILED, why=why))

        address = MachineAddress(spec.listen, spec.advertised, spec.ports)
        slots = None if not spec.hosts else 0 if own is None else own.slots
        agent = NodeAgent(
            run_dir, spec, address, slots=slots, begins=True, resumed=record.resumed, opened=invite
        )
        return agent
    if record.spec.contract is None:
        from elastane.run.agent.agent import Agent

        return Agent(run_dir, record.spec, resumed=record.resumed)
    from elastane.run.scripts.agent.script_agent import ScriptAgent

    return ScriptAgent(run_dir, record.spec, resumed=record.resumed)


def issue_first_ticket(run_dir: RunDir, address: NodeAddress) -> str:
    """Return a new ticket for an attempt of the run, by which other machines take part."""
    fingerprint = compute_fingerprint(read_certificate(run_dir))
    return encode_ticket(issue_ticket(run_dir, fingerprint, ((address.host, address.port),)))


async def close_view(showing: "asyncio.Task[None]", view: AttemptView, display: Display) -> None:
    """Close the view after its last update. A failure of the view is shown; the outcome stays."""
    showing.cancel()
    (outcome,) = await asyncio.gather(showing, return_exceptions=True)
    failed = isinstance(outcome, Exception)
    view.close(update=not failed)
    if failed:
        display.say(f"the display failed ({outcome}); the run continued without it")
