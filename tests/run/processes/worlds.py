"""A stage for unmodified scripts: real agents and fork servers, which a test disturbs while they run."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from elastane.common.errors import NoSuchRun, RunFailed
from elastane.run.attempts.run_directory import claim_run_directory
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.control import Answer, Ask, AskDrain, AskResize, AskStatus, AskStop, RunOver
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec, TorchrunContract
from elastane.run.observability.run_files import read_events
from elastane.run.scripts.agent.script_agent import ScriptAgent
from tests.waiting import WAIT_S, wait_until, wait_until_async

from .stage import SCRIPTS, Stage

SHORT_S = 2


class LiveScript:
    """An unmodified script that runs, and ways to disturb it.

    Args:
        run_dir: of the run.
        agent: of the run.
        folder: of the script's own files.
    """

    def __init__(self, run_dir: RunDir, agent: ScriptAgent, folder: Path) -> None:
        self.run_dir, self.agent, self.folder = run_dir, agent, folder

    async def ask(self, question: Ask) -> Answer:
        return await asyncio.to_thread(ask_coordinator, self.run_dir, question, WAIT_S / 2)

    async def resize(self, workers: int) -> None:
        answer = await self.ask(AskResize(workers=workers))
        assert answer.ok, answer.why

    async def drain(self, worker: int) -> None:
        answer = await self.ask(AskDrain(worker=worker))
        assert answer.ok, answer.why

    async def stop(self) -> None:
        await self.ask(AskStop())

    async def read_status(self) -> Answer | None:
        try:
            return await asyncio.to_thread(ask_coordinator, self.run_dir, AskStatus(), SHORT_S)
        except (NoSuchRun, RunFailed):
            return None

    async def kill(self, worker: int, number: int = signal.SIGKILL) -> int:
        """Signal the first process of a worker and return its id."""

        async def find_pid() -> int | None:
            answer = await self.read_status()
            rows = () if answer is None else answer.processes
            return next((row.pid for row in rows if row.worker == worker), None)

        pid = await wait_until_async(find_pid, f"worker {worker} has a process")
        assert pid is not None
        os.kill(pid, number)
        return pid

    async def wait_for_note(self, text: str, count: int = 1) -> None:
        """Wait until the script has written lines that begin with this text, this many times."""
        await self.wait_until(
            lambda: sum(note.startswith(text) for note in self.notes) >= count, f"{count} notes {text!r}"
        )

    async def wait_for_event(self, kind: str, count: int = 1) -> None:
        await self.wait_until(lambda: len(self.find_events(kind)) >= count, f"{count} events {kind}")

    async def wait_until(self, done: Callable[[], bool], what: str) -> None:
        await wait_until_async(done, what, state=lambda: self.notes)

    def find_events(self, kind: str) -> list[EventLine]:
        return [event for event in read_events(self.run_dir, torn_tail=True) if event.kind == kind]

    def release(self, name: str) -> None:
        """Let the script go on that waits while this file exists."""
        (self.folder / name).unlink()

    @property
    def notes(self) -> list[str]:
        return read_notes(self.folder)


@dataclass(frozen=True)
class EndedScript:
    """An unmodified script that has ended: its outcome, its files and the events of its run."""

    outcome: RunOver
    run_dir: RunDir
    folder: Path

    @property
    def notes(self) -> list[str]:
        return read_notes(self.folder)

    @property
    def events(self) -> tuple[EventLine, ...]:
        return read_events(self.run_dir, torn_tail=True)

    def find_events(self, kind: str) -> list[EventLine]:
        return [event for event in self.events if event.kind == kind]

    def describe(self) -> str:
        """Return what happened, for the message of a failed test."""
        lines = [f"{event.time:.3f} {event.kind} {event.who}: {event.why}" for event in self.events]
        logs = [f"--- {log.name}\n{log.read_text()[-4000:]}" for log in self.run_dir.logs.glob("*.log")]
        return "\n".join([str(self.outcome), *self.notes, *lines, *logs])


ScriptDisturbance = Callable[[LiveScript], Awaitable[None]]


async def leave_alone(_running: LiveScript) -> None:
    """Leave the script alone."""


def play_script(
    stage: Stage,
    root: Path,
    script: Path | str,
    *args: str,
    disturb: ScriptDisturbance = leave_alone,
    holds: tuple[str, ...] = (),
    start: int = 1,
    most: int = 4,
    **contract: object,
) -> EndedScript:
    """Run an unmodified script to its end.

    Args:
        stage: of the session.
        root: an empty folder.
        script: a file of ``scripts/torchrun``, or any path.
        args: of the script, after its folder.
        disturb: disturbs the run.
        holds: files of the script's folder at which it waits until they are removed.
        start: the number of workers at the start.
        most: the largest number of workers.
        contract: fields of the contract.
    """
    folder = root / "files"
    folder.mkdir()
    for name in holds:
        (folder / name).touch()
    spec = RunSpec(
        name="script",
        script=str(SCRIPTS / "torchrun" / script),
        args=(str(folder), *args),
        start=start,
        max_workers=most,
        contract=TorchrunContract(**{"grace_s": 20.0, **contract}),
    )
    with claim_run_directory(spec, root / "run", linked=False) as files:
        agent = ScriptAgent(files, spec, command=(*stage.warm_client, "script-server"))
        outcome = asyncio.run(_play(agent, LiveScript(files, agent, folder), disturb))
    ended = EndedScript(outcome, files, folder)
    wait_for_end(root)
    return ended


async def _play(agent: ScriptAgent, run: LiveScript, disturb: ScriptDisturbance) -> RunOver:
    running = asyncio.create_task(agent.run())
    disturbance = asyncio.create_task(disturb(run))
    try:
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait((running, disturbance), return_when=asyncio.FIRST_COMPLETED)
            if not disturbance.done():
                disturbance.cancel()
            await asyncio.wait((disturbance,))
            if not disturbance.cancelled():
                disturbance.result()
            return await running
    except TimeoutError:
        ended = EndedScript(RunOver(code=-1, why="it did not end"), run.run_dir, run.folder)
        raise AssertionError(ended.describe()) from None
    finally:
        disturbance.cancel()
        if not running.done():
            agent.kill()
            await running


def read_notes(folder: Path) -> list[str]:
    journal = folder / "journal"
    return journal.read_text().splitlines() if journal.exists() else []


def wait_for_end(root: Path) -> None:
    """Wait until no process has a file below a folder open."""
    wait_until(lambda: not _find_users(root), "no process is left", state=lambda: _find_users(root))


def _find_users(root: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            opened = [str(fd.readlink()) for fd in (entry / "fd").iterdir()]
        except OSError:
            continue
        if int(entry.name) != os.getpid() and any(name.startswith(f"{root}/") for name in opened):
            found.append(int(entry.name))
    return found
