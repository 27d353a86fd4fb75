"""An agent of an engine, as ``elastane join -``, that makes steps without training.

The program of agents is the real one: ticket, arrival, attempt file, outcome and departure. Only the run is
small. Each member has a file in ``members``, and the one that holds a lock is the coordinator: it writes the
ledger, like `small_agent`. If it leaves or dies, another one goes on. ``agents.jsonl`` in the home of the
variable TEST_HOME records every start.
"""

import asyncio
import fcntl
import os
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
from small_agent import STEP_S, SmallAttempt, append
from websockets.asyncio.server import serve

from elastane.cluster.engines import agent_program
from elastane.cluster.nouns.job_tickets import decode_job_ticket
from elastane.common.errors import NoSuchRun
from elastane.common.process_identity import read_start_time
from elastane.run.attempts import job_attempt
from elastane.run.attempts.attempt_file import read_attempt
from elastane.run.attempts.interrupts import Interrupts, watch_signals
from elastane.run.nouns.attempts import AttemptOutcome
from elastane.run.nouns.control import Answer, ProcessInfo, RunOver
from elastane.run.nouns.membership import NodeAddress
from elastane.run.nouns.rundir import RunDir

LOOK_S = 0.02
FIRST = "first"
"""File of the machine that began the attempt, which has no name in its run."""
signals = Interrupts()


class Start(msgspec.Struct):
    """A line of ``agents.jsonl``: a process of an agent has begun, or its part in an attempt has."""

    agent: str
    pid: int
    started: int
    job: str = ""
    attempt: int = 0


class SmallRun(SmallAttempt):
    """The coordinator of an attempt on several machines."""

    def __init__(self, run_dir: RunDir, attempt: int) -> None:
        super().__init__(run_dir, attempt, 1)

    def _resize(self, workers: int) -> None:
        """Do nothing: the run has as many workers as machines."""

    def _make_step(self) -> None:
        self._workers = len(list_members(self._run_dir, self._attempt))
        super()._make_step()

    def _note(self) -> None:
        """Do nothing: agents hold the devices."""

    def _status(self) -> Answer:
        members = list_members(self._run_dir, self._attempt)
        rows = tuple(
            ProcessInfo(role="worker", pid=0, worker=number, state="member", generation=1)
            for number, _ in enumerate(members)
        )
        nodes = tuple(NodeAddress("" if name == FIRST else name, "127.0.0.1", 1) for name in members)
        return Answer(ok=True, step=self._step, target=len(members), processes=rows, nodes=nodes)

    async def coordinate(self) -> AttemptOutcome | None:
        """Make steps until the run has ended, or until this machine leaves; then return None."""
        async with serve(self._answer, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            endpoint = msgspec.json.encode({"host": host, "port": port})
            self._run_dir.endpoint.write_bytes(endpoint)
            try:
                while not self._stopped.is_set():
                    if self._step >= self._steps:
                        return AttemptOutcome(code=0, why="all steps are made")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(STEP_S):
                            await self._stopped.wait()
                    if signals.stopping:
                        return None
                    self._make_step()
                return AttemptOutcome(code=130, why="stopped")
            finally:
                self._run_dir.endpoint.unlink()


def locate_members(run_dir: RunDir, attempt: int) -> Path:
    return run_dir.root / f"members-{attempt}"


def list_members(run_dir: RunDir, attempt: int) -> list[str]:
    """Return the names of the machines that take part and live."""
    found = []
    for path in sorted(locate_members(run_dir, attempt).iterdir()):
        with suppress(OSError, ValueError):
            pid, started = map(int, path.read_text().split())
            if read_start_time(pid) == started:
                found.append(path.name)
    return found


def record_start(agent: str, job: str = "", attempt: int = 0) -> None:
    pid = os.getpid()
    line = Start(agent, pid, read_start_time(pid) or 0, job, attempt)
    append(Path(os.environ["TEST_HOME"]) / "agents.jsonl", line)


def take_part(run_dir: RunDir, attempt: int, name: str) -> AttemptOutcome | None:
    """Take part in an attempt to its end; return its outcome if this machine has found it."""
    members = locate_members(run_dir, attempt)
    members.mkdir(exist_ok=True)
    own = members / name
    fresh = members.parent / f"{members.name}-{name}"
    fresh.write_text(f"{os.getpid()} {read_start_time(os.getpid())}")
    fresh.replace(own)
    with ExitStack() as stack:
        stack.callback(leave_members, run_dir, attempt, own)
        lock = stack.enter_context((run_dir.root / f"coordinator-{attempt}").open("w"))
        while not signals.stopping:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_over(run_dir, attempt):
                    return None
                outcome = asyncio.run(SmallRun(run_dir, attempt).coordinate())
                if outcome is not None:
                    # Before another member gets the lock.
                    job_attempt.record_outcome(run_dir, attempt, outcome)
                return outcome
            if is_over(run_dir, attempt):
                return None
            time.sleep(LOOK_S)  # not a wait: as often as the real one looks
    return None


def leave_members(run_dir: RunDir, attempt: int, own: Path) -> None:
    """Leave an attempt; the last machine stops it, as the real one does."""
    with (run_dir.root / f"leaving-{attempt}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        own.unlink()
        if not list_members(run_dir, attempt) and not is_over(run_dir, attempt):
            outcome = AttemptOutcome(code=130, why="its last machine has left")
            job_attempt.record_outcome(run_dir, attempt, outcome)


def is_over(run_dir: RunDir, number: int) -> bool:
    attempt = read_attempt(run_dir)
    return attempt is None or attempt.number != number or attempt.outcome is not None


def begin_small_run(run_dir: RunDir, wish: job_attempt.AttemptRequest, _: object) -> AttemptOutcome | None:
    record_start(agent, run_dir.root.name, wish.attempt)
    return take_part(run_dir, wish.attempt, FIRST)


def join_small_run(machine, _: object, *, is_admitted: bool) -> tuple[RunOver, bool]:
    assert not is_admitted
    attempt = read_attempt(machine.shared)
    if attempt is None or attempt.outcome is not None:
        raise NoSuchRun("the attempt has ended")
    outcome = take_part(machine.shared, attempt.number, machine.run_dir.node)
    if outcome is None:
        return RunOver(code=0, why="it has left"), False
    return RunOver(code=outcome.code, why=outcome.why), True


@contextmanager
def watch_shared_signals():
    """Let the small run see the signals of the agent."""
    global signals
    with watch_signals() as signals:
        yield signals


if __name__ == "__main__":
    assert sys.argv[1:] == ["join", "-"], sys.argv
    ticket = decode_job_ticket(sys.stdin.readline())
    agent = ticket.agent
    record_start(agent)
    job_attempt.determine_outcome = begin_small_run
    agent_program.join_shared_run = join_small_run
    agent_program.check_joinable = lambda *_: None
    agent_program.watch_signals = watch_shared_signals
    sys.exit(agent_program.run_agent(ticket))
