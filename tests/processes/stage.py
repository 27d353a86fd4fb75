"""Real runs, staged: real agents, coordinators, meshes and workers, told what happens to them and when."""

import asyncio
import hashlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elastane.agent.agent import Agent
from elastane.agent.processes import Commands
from elastane.api.control import Answer, Ask, AskDrain, AskResize, AskStatus, RunOver
from elastane.api.errors import NoSuchRun, RunFailed
from elastane.api.records import EventLine
from elastane.api.rundir import RunDir
from elastane.api.spec import RunSpec
from elastane.attempts.run_directory import claim_run_directory
from elastane.attempts.verification import verify_run
from elastane.client.channel import ask
from elastane.observability.run_files import Recorded, read_run
from elastane.observability.verify import Verdict
from elastane.protocol.tree import expand_spans

SCRIPTS = Path(__file__).with_name("scripts")
WAIT_S = 40
SHORT_S = 2
POLL_S = 0.02
VIRTUAL_RANKS = 8


class Running:
    """A run under way."""

    def __init__(self, run_dir: RunDir, agent: Agent) -> None:
        self.run_dir = run_dir
        self.agent = agent

    async def ask(self, question: Ask) -> Answer:
        return await asyncio.to_thread(ask, self.run_dir, question, WAIT_S / 2)

    async def resize(self, workers: int) -> None:
        answer = await self.ask(AskResize(workers=workers))
        assert answer.ok, answer.why

    async def until(self, done: Callable[[Answer], bool]) -> Answer:
        """The first status that is as wished."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    answer = await asyncio.to_thread(ask, self.run_dir, AskStatus(), SHORT_S)
                except (NoSuchRun, RunFailed):
                    answer = None
                if answer is not None and done(answer):
                    return answer
                await asyncio.sleep(POLL_S)

    async def until_step(self, step: int) -> Answer:
        """All of ``step`` and those before are committed."""
        return await self.until(lambda answer: answer.step >= step)

    async def until_event(self, kind: str, who: str = "") -> None:
        async with asyncio.timeout(WAIT_S):
            while True:
                if any(event.kind == kind and who in (event.who, "") for event in self.events()):
                    return
                await asyncio.sleep(POLL_S)

    async def until_share(self, worker: int, count: int) -> None:
        """The last line of the ledger gives ``worker`` at least ``count`` virtual ranks."""
        async with asyncio.timeout(WAIT_S):
            while True:
                ledger = read_run(self.run_dir).ledger
                if ledger and len(expand_spans(ledger[-1].workers.get(worker, ""))) >= count:
                    return
                await asyncio.sleep(POLL_S)

    def events(self) -> tuple[EventLine, ...]:
        return read_run(self.run_dir).events

    def open(self, name: str) -> None:
        """Lets those go on who wait for this file."""
        (self.run_dir.root / name).touch()

    async def pace(self, done: Callable[[Answer], bool]) -> Answer:
        """One paced step after the other, until it is as wished."""
        answer = await self.until(lambda answer: answer.step > 0)
        while not done(answer):
            assert answer.step < answer.steps, "the last step was made before it was as wished"
            self.open(f"gate-{answer.step + 1}")
            following = answer.step + 1
            answer = await self.until_step(following)
        return answer

    def go(self) -> None:
        """No step is paced any more."""
        self.open("gates")


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    over: RunOver
    run: Recorded

    @property
    def digests(self) -> dict[int, tuple[str, str]]:
        """Of parameters and optimizer state, after every step that has them."""
        return {
            line.step: (line.digest.parameters, line.digest.optimizer)
            for line in self.run.ledger
            if line.digest is not None
        }

    @property
    def losses(self) -> list[str]:
        return [line.loss_hex for line in self.run.ledger]

    @property
    def said(self) -> list[str]:
        """What the script printed, an evaluation and the last digest among it."""
        return [event.why for event in self.events("message")]

    @property
    def model(self) -> str:
        return hashlib.sha256(self.run.run_dir.model_files.weights.read_bytes()).hexdigest()

    @cached_property
    def verdict(self) -> Verdict:
        return verify_run(self.run)

    @cached_property
    def dealt(self) -> dict[int, Counter[tuple[int, int]]]:
        """Per worker, how often it was dealt which ``(step, virtual rank)``, rehearsals included."""
        return {
            int(notes.name.removeprefix("dealt-")): Counter(
                (int(step), int(rank)) for step, rank in map(str.split, notes.read_text().splitlines())
            )
            for notes in self.run.run_dir.root.glob("dealt-*")
        }

    def shares(self, step: int) -> dict[int, frozenset[int]]:
        """Who computed what, by the ledger."""
        return {worker: expand_spans(spans) for worker, spans in self.run.ledger[step - 1].workers.items()}

    def generation(self, step: int) -> int:
        return self.run.ledger[step - 1].generation

    def computed(self, step: int, *, by: Sequence[int]) -> int:
        """How many virtual ranks of the step these workers really began to compute."""
        return sum(count for worker in by for (at, _), count in self.dealt[worker].items() if at == step)

    def events(self, kind: str) -> list[EventLine]:
        return [event for event in self.run.events if event.kind == kind]

    def who(self, kind: str) -> list[str]:
        return [event.who for event in self.events(kind)]

    def log(self, process: str) -> str:
        return self.run.run_dir.log(process).read_text()

    def story(self) -> str:
        return f"{self.over}\n{told(self.run)}"


Story = Callable[[Running], Awaitable[None]]


async def no_story(_running: Running) -> None:
    """Nothing happens."""


class Stage:
    """Where runs are staged.

    Args:
        root: each run gets a directory in it.
        warm: socket of the session's warm process.
    """

    def __init__(self, root: Path, warm: Path) -> None:
        self._root = root
        client = (sys.executable, "-S", "-E", str(Path(__file__).with_name("warm_client.py")), str(warm))
        self.commands = Commands(fork_server=client)
        self._runs = 0

    def program(self, module: str) -> tuple[str, ...]:
        """The command of a program of elastane whose runs begin at once; its arguments follow."""
        main = Path(__file__).with_name("warm_main.py")
        return (sys.executable, "-P", str(main), module, *self.commands.fork_server, "--")

    def play(
        self,
        *args: str,
        story: Story = no_story,
        script: Path | str = "training.py",
        run_dir: Path | None = None,
        **wishes: object,
    ) -> Ended:
        """One run, from its start to its end.

        Args:
            args: of the script.
            story: what happens to the run meanwhile.
            script: in ``scripts/``, or anywhere.
            run_dir: a new one unless named.
            wishes: fields of the `RunSpec`.
        """
        self._runs += 1
        limits = {"start": 1, "max_workers": VIRTUAL_RANKS, "digest_every": 5} | wishes
        spec = RunSpec(name=f"run-{self._runs}", script=str(SCRIPTS / script), args=args, **limits)
        with claim_run_directory(spec, run_dir or self._root / spec.name) as files:
            agent = Agent(files, spec, self.commands)
            over = asyncio.run(_played(agent, Running(files, agent), story))
        return Ended(over, read_run(files))


async def _played(agent: Agent, running: Running, story: Story) -> RunOver:
    task = asyncio.create_task(agent.run())
    telling = asyncio.create_task(story(running))
    try:
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait((task, telling), return_when=asyncio.FIRST_COMPLETED)
            # A run that has ended does not bring what its story still waits for.
            if not telling.done():
                telling.cancel()
            await asyncio.wait((telling,))
            if not telling.cancelled():
                telling.result()
            return await task
    except TimeoutError:
        raise AssertionError(await _standstill(running)) from None
    finally:
        if not task.done():
            agent.kill()
            await task


async def _standstill(running: Running) -> str:
    """Where everybody stands; workers write the stacks of their threads when they get SIGUSR1."""
    workers = running.agent.workers.living
    for pid in workers.values():
        os.kill(pid, signal.SIGUSR1)
    await asyncio.sleep(1)
    return f"no end after {WAIT_S} s; alive: {dict(workers)}\n" + told(read_run(running.run_dir))


def told(run: Recorded) -> str:
    """For the reader of a failed test."""
    lines = [f"{event.time:.3f} {event.kind} {event.who}: {event.why}" for event in run.events]
    logs = [f"--- {path.name}\n{path.read_text()[-6000:]}" for path in run.run_dir.logs.iterdir()]
    return "\n".join([f"{len(run.ledger)} steps", *lines, *logs])


def member_states(answer: Answer) -> set[int | None]:
    """Workers that work in the newest generation."""
    return {
        row.worker
        for row in answer.processes
        if row.role == "worker" and row.state == "member" and row.generation == answer.generation
    }


def state_of(answer: Answer, worker: int) -> str:
    return next((row.state for row in answer.processes if row.worker == worker), "")


def pid_of(answer: Answer, role: str, worker: int | None = None) -> int:
    return next(row.pid for row in answer.processes if row.role == role and row.worker == worker)


def kill(answer: Answer, role: str, worker: int | None = None, number: int = signal.SIGKILL) -> int:
    pid = pid_of(answer, role, worker)
    os.kill(pid, number)
    return pid


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def eventually(done: Callable[[], bool], what: str) -> None:
    """Polls until it is so.

    Raises:
        AssertionError: it is not so after a minute.
    """
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, f"not so after {WAIT_S} s: {what}"
        time.sleep(POLL_S)


async def one_joins_and_one_leaves(running: Running) -> None:
    """A story: worker 2 joins, worker 0 is drained."""
    await running.until_step(4)
    await running.resize(3)
    await running.until_event("worker.ready", "worker 2")
    await running.pace(lambda answer: 2 in member_states(answer))
    answer = await running.ask(AskDrain(worker=0))
    assert answer.ok
    await running.pace(lambda answer: state_of(answer, 0) == "")
    running.go()
