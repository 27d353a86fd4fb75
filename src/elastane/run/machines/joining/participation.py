"""The part of a joined machine in a run, from one attempt to the next.

If every copy of the state is lost, the program that began the run resumes it. If that program has left or
died, a joined machine resumes it: the first one that gets the lock of the run directory.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from elastane.common.errors import BadInput, ElastaneError
from elastane.common.extras import require
from elastane.common.untrusted_data import Malformed
from elastane.run.attempts.interrupts import Interrupts, describe_signal, watch_signals
from elastane.run.attempts.results import write_final_event, write_results
from elastane.run.attempts.resumption import STATE_LOST, Say, prepare_resumption
from elastane.run.attempts.run_directory import lock_run_directory
from elastane.run.attempts.supervision import (
    MOST_FUTILE_ATTEMPTS,
    build_start_error,
    choose_grace,
    count_futile,
    issue_first_ticket,
)
from elastane.run.attempts.tracking import StandbyTrackers
from elastane.run.connections.endpoint import read_own_endpoint
from elastane.run.connections.run_lock import is_locked
from elastane.run.machines.agents.node_agent import NodeAgent
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.nouns.membership import NodeAddress, SiteName
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord
from elastane.run.observability.run_files import read_record

RELEASE_S, RELEASE_LOOK_S = 10.0, 0.1
"""How long the program of a machine that has left may take to end, and how often another one looks."""


@dataclass(frozen=True, slots=True)
class JoinedMachine:
    """A machine that takes part in a run that began on another one.

    Args:
        run_dir: of the run, with the name of this machine.
        address: where this machine listens, and where the others reach it.
        slots: the most workers on it.
        say: takes lines for the user.
        sites: of which it may read the data.
        ticket: the one of a site with which it joins, as its id and key; empty: it has none.
    """

    run_dir: RunDir
    address: MachineAddress
    slots: int
    say: Say
    sites: tuple[SiteName, ...] = ()
    ticket: str = ""

    @property
    def shared(self) -> RunDir:
        """The run directory as the run has it, without the name of this machine."""
        return RunDir(self.run_dir.root)


def take_part(machine: JoinedMachine, record: RunRecord) -> tuple[RunOver, bool]:
    """Take part in a run to its end, and write its results if this machine is in charge then.

    Args:
        machine: this machine; no other one gets its name meanwhile.
        record: of the present attempt.

    Returns:
        The outcome, and whether this machine has written the results.

    Raises:
        RunFailed: the processes cannot be started.
        RunDirectoryLost: the run directory was removed, moved or replaced.
    """
    with (
        watch_signals() as signals,
        StandbyTrackers(machine.shared, record.spec.log, machine.say) as trackers,
        ExitStack() as held,
    ):
        over, concludes, left = _take_part_in_attempts(machine, record, trackers, held, signals)
        if concludes:
            # The run may end before the trackers learn that this machine took charge.
            trackers.start()
        if not left:
            trackers.finish(choose_grace(over))
        if concludes:
            write_results(machine.shared, machine.say)
    return over, concludes


def _take_part_in_attempts(
    machine: JoinedMachine,
    record: RunRecord,
    trackers: StandbyTrackers,
    held: ExitStack,
    signals: Interrupts,
) -> tuple[RunOver, bool, bool]:
    """Take part in one attempt after the other.

    Args:
        machine: this machine.
        record: of the present attempt.
        trackers: start once this machine is in charge.
        held: receives the lock of the run directory once this machine acts for the run.
        signals: of this process.

    Returns:
        The last outcome, whether this machine acts for the run now, and whether it has left it.
    """
    run_dir, acts, futile = machine.shared, False, 0
    while True:
        agent, over = asyncio.run(_train_attempt(machine, record, trackers, signals, begins=acts))
        if agent.left:
            return over, False, True
        if agent.concludes and not acts:
            acts = _lock_when_released(run_dir, held)
        if acts:
            write_final_event(run_dir, over)
        # After a notice there is no time for another attempt. Without a shared directory the controller of
        # the job decides where the next one begins.
        if not over.lost or futile == MOST_FUTILE_ATTEMPTS or signals.stopping or run_dir.is_private:
            return over, acts, False
        if not acts:
            machine.say(f"{over.why}; waiting for the machine that resumes the run")
        following = None if acts else _wait_or_lock(run_dir, record, held)
        if following is None:
            acts, following = True, _resume(machine, record, agent.target)
        if following is None:
            return over, acts, False
        futile = count_futile(futile, record, following)
        record = following


def _wait_or_lock(run_dir: RunDir, last: RunRecord, held: ExitStack) -> RunRecord | None:
    """Wait until the next attempt has begun; return None once this machine has the lock and must begin it."""
    while (following := wait_for_next_attempt(run_dir, last)) is None:
        if _try_to_lock(run_dir, held):
            return None
    return following


def _try_to_lock(run_dir: RunDir, held: ExitStack) -> bool:
    """Lock the run directory until the end of a context; return False if another program has locked it."""
    try:
        held.enter_context(lock_run_directory(run_dir))
    except BadInput:
        return False
    return True


def _lock_when_released(run_dir: RunDir, held: ExitStack) -> bool:
    """Lock the run directory, which a machine that has left holds until its processes have ended."""
    give_up = time.monotonic() + RELEASE_S
    while not _try_to_lock(run_dir, held):
        if time.monotonic() > give_up:
            return False
        time.sleep(RELEASE_LOOK_S)
    return True


def _resume(machine: JoinedMachine, last: RunRecord, workers: int) -> RunRecord | None:
    """Prepare the next attempt, which this machine begins; say why and return None if it cannot.

    Args:
        machine: this machine, which has locked the run directory.
        last: the record of the last attempt in which it took part.
        workers: how many it begins with.
    """
    try:
        require("nodes", "resuming the run on this machine")
        if read_record(machine.shared).resumed != last.resumed:
            machine.say("another machine has resumed the run meanwhile, and that attempt has ended too")
            return None
        spec = msgspec.structs.replace(last.spec, start=max(workers, 1))
        own = f"node {machine.run_dir.node}"
        return prepare_resumption(machine.shared, spec, machine.say, begun_by=own, why=STATE_LOST)
    except ElastaneError as error:
        machine.say(f"cannot resume: {error}")
        return None


async def _train_attempt(
    machine: JoinedMachine,
    record: RunRecord,
    trackers: StandbyTrackers,
    signals: Interrupts,
    *,
    begins: bool,
) -> tuple[NodeAgent, RunOver]:
    """Run this machine's agent to its end.

    A notice or Ctrl-C drains the machine, a second Ctrl-C kills its workers.

    Raises:
        RunFailed: the processes cannot be started.
    """
    agent = NodeAgent(
        machine.run_dir,
        record.spec,
        machine.address,
        slots=machine.slots,
        begins=begins,
        resumed=record.resumed,
        opened=_make_invitation(machine) if begins else lambda _: None,
        sites=machine.sites,
        ticket=machine.ticket,
        say=machine.say,
    )

    def leave(name: str) -> None:
        what = "stopping the run" if agent.is_last else "leaving the run"
        again = "press Ctrl-C again" if name == "SIGINT" else "press Ctrl-C twice"
        machine.say(f"{describe_signal(name)}{what} at the next commit; {again} to end at once")
        agent.leave()

    def kill() -> None:
        machine.say("ending all workers on this machine")
        agent.kill()

    following = asyncio.create_task(trackers.follow(lambda: agent.in_charge))
    try:
        with signals.guide(leave, kill):
            return agent, await agent.run()
    except OSError as error:
        raise build_start_error(machine.run_dir, error) from error
    finally:
        following.cancel()


def _make_invitation(machine: JoinedMachine) -> Callable[[NodeAddress], None]:
    def invite(address: NodeAddress) -> None:
        ticket = issue_first_ticket(machine.shared, address)
        machine.say(f"on other machines: elastane join {ticket}")

    return invite


# -- the wait of a joined machine for the next attempt of a run that has lost its state ------------------
#
# One machine resumes it from its newest checkpoint. The others wait: if their command ended, the
# scheduler that started it would give the devices of their machine away.


LOOK_S = 0.5
UNLOCKED_S = 5.0
"""How long the run directory may be unlocked. The program that begins the attempts of a run locks it."""


def wait_for_next_attempt(run_dir: RunDir, last: RunRecord) -> RunRecord | None:
    """Wait until the next attempt of a run has begun.

    Args:
        last: the record of the attempt that has ended.

    Returns:
        The record of the next attempt; None: no program has locked the run directory to begin it.
    """
    locked_s = time.monotonic()
    while time.monotonic() - locked_s < UNLOCKED_S:
        if is_locked(run_dir.lock):
            locked_s = time.monotonic()
        if (record := _read_next(run_dir, last)) is not None:
            return record
        time.sleep(LOOK_S)
    return None


def _read_next(run_dir: RunDir, last: RunRecord) -> RunRecord | None:
    """Return the record of the next attempt once its coordinator answers; None: not yet."""
    try:
        record = read_record(run_dir)
        if record.resumed is None or record.resumed == last.resumed:
            return None
        return record if read_own_endpoint(run_dir, record.resumed.times).term else None
    except (OSError, ElastaneError, Malformed):
        # The files change now, or the file system is away.
        return None
