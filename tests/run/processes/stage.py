"""A stage for real runs: real agents, coordinators and workers, which a test disturbs while they train."""

import asyncio
import hashlib
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elastane.common.errors import NoSuchRun, RunFailed
from elastane.run.agent.agent import Agent
from elastane.run.agent.processes import Commands
from elastane.run.attempts.run_directory import claim_run_directory
from elastane.run.attempts.verification import verify_run
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.machines.agents.node_agent import NodeAgent
from elastane.run.nouns.control import Answer, Ask, AskDrain, AskResize, AskStatus, RunOver
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.silence_limits import SILENCE_S
from elastane.run.nouns.spec import RunSpec
from elastane.run.observability.run_files import Recorded, read_events, read_ledger, read_run
from elastane.run.observability.verify import Verdict
from elastane.run.protocol.tree import expand_spans
from tests import waiting
from tests.waiting import wait_until_async

SCRIPTS = Path(__file__).with_name("scripts")
SHORT_S = 2
VIRTUAL_RANKS = 8
USUAL_STEPS = 3
LONGEST_PATIENCE_S = 1.0
SHORT_SILENCE_S = 1.5
"""The silence that runs allow in tests that wait for the loss of a machine or a coordinator.

Beside four busy processes, on two cores with a load of 11, all of 1,010 reports came at most 0.11 s late. So
a healthy worker seems neither quiet, which takes 0.35 s more than the time between two reports, nor lost.
"""


class LiveRun:
    """A run that is training, and ways to disturb it."""

    def __init__(self, run_dir: RunDir, agent: Agent) -> None:
        self.run_dir = run_dir
        self.agent = agent

    async def ask(self, question: Ask) -> Answer:
        return await asyncio.to_thread(ask_coordinator, self.run_dir, question, waiting.WAIT_S / 2)

    async def resize(self, workers: int) -> None:
        answer = await self.ask(AskResize(workers=workers))
        assert answer.ok, answer.why

    async def wait_until(self, done: Callable[[Answer], bool], what: str = "its status is right") -> Answer:
        """Ask for the status until it fulfils ``done``, and return it."""

        async def look() -> Answer | None:
            try:
                answer = await asyncio.to_thread(ask_coordinator, self.run_dir, AskStatus(), SHORT_S)
            except (NoSuchRun, RunFailed):
                return None
            return answer if done(answer) else None

        return await wait_until_async(look, what)

    async def wait_for_step(self, step: int) -> Answer:
        """Wait until ``step`` and all steps before it are committed."""
        return await self.wait_until(lambda answer: answer.step >= step, f"step {step} is committed")

    async def wait_for_event(self, kind: str, subject: str = "") -> None:
        """Wait for an event of this kind; with a subject, for one of this subject or of none."""

        def has_happened() -> bool:
            return any(event.kind == kind and subject in (event.who, "") for event in self.read_events())

        await wait_until_async(has_happened, f"{kind} of {subject or 'any'}")

    async def wait_for_share(self, worker: int, count: int) -> None:
        """Wait until the last line of the ledger gives ``worker`` at least ``count`` virtual ranks."""

        def has_share() -> bool:
            ledger = read_ledger(self.run_dir, torn_tail=True)
            return bool(ledger) and len(expand_spans(ledger[-1].workers.get(worker, ""))) >= count

        await wait_until_async(has_share, f"worker {worker} has {count} virtual ranks")

    def read_events(self) -> tuple[EventLine, ...]:
        return read_events(self.run_dir, torn_tail=True)

    def touch(self, name: str) -> None:
        """Create a file in the run directory that workers wait for."""
        (self.run_dir.root / name).touch()

    async def step_until(self, done: Callable[[Answer], bool], *, patience_s: float = 0.0) -> Answer:
        """Let a paced run make one step after the other until its status fulfils ``done``.

        Args:
            done: the condition.
            patience_s: how long it waits for the condition after each step. After the usual number of steps
                it waits longer and longer: on a busy machine the condition may take longer than the few steps
                of a short run. A worker that waits long counts as hung.
        """
        answer = await self.wait_until(lambda answer: answer.step > 0)
        begun = answer.step
        while not done(answer):
            assert answer.step < answer.steps, "the run made its last step before the condition held"
            late = max(0, answer.step - begun - USUAL_STEPS)
            if longest_s := patience_s + min(0.1 * late, LONGEST_PATIENCE_S):
                with suppress(TimeoutError):
                    async with asyncio.timeout(longest_s):
                        return await self.wait_until(done)
            self.touch(f"gate-{answer.step + 1}")
            following = answer.step + 1
            answer = await self.wait_for_step(following)
        return answer

    def stop_pacing(self) -> None:
        """Let a paced run make all its remaining steps."""
        self.touch("gates")


@dataclass(frozen=True)
class EndedRun:
    """A run that is over: its outcome and its files."""

    outcome: RunOver
    run: Recorded

    @property
    def digests(self) -> dict[int, tuple[str, str]]:
        """Digests of parameters and of optimizer state, by step, of each step that has them."""
        return {
            line.step: (line.digest.parameters, line.digest.optimizer)
            for line in self.run.ledger
            if line.digest is not None
        }

    @property
    def losses(self) -> list[str]:
        return [line.loss_hex for line in self.run.ledger]

    @property
    def messages(self) -> list[str]:
        """Lines that the script printed; the evaluation and the last digest are among them."""
        return [event.why for event in self.find_events("message")]

    @property
    def model_digest(self) -> str:
        return hashlib.sha256(self.run.run_dir.model_files.weights.read_bytes()).hexdigest()

    @cached_property
    def verdict(self) -> Verdict:
        return verify_run(self.run)

    @cached_property
    def assignments(self) -> dict[int, Counter[tuple[int, int]]]:
        """Per worker, how often it began to compute each ``(step, virtual rank)``, rehearsals included."""
        return {
            int(notes.name.removeprefix("assigned-")): Counter(
                (int(step), int(rank)) for step, rank in map(str.split, notes.read_text().splitlines())
            )
            for notes in self.run.run_dir.root.glob("assigned-*")
        }

    def get_shares(self, step: int) -> dict[int, frozenset[int]]:
        """Return the virtual ranks of each worker in a step, by the ledger."""
        return {worker: expand_spans(spans) for worker, spans in self.run.ledger[step - 1].workers.items()}

    def get_generation(self, step: int) -> int:
        return self.run.ledger[step - 1].generation

    def count_computed(self, step: int, *, by: Sequence[int]) -> int:
        """Count the virtual ranks of a step that these workers really began to compute."""
        return sum(
            count for worker in by for (at, _), count in self.assignments[worker].items() if at == step
        )

    def find_events(self, kind: str) -> list[EventLine]:
        return [event for event in self.run.events if event.kind == kind]

    def find_subjects(self, kind: str) -> list[str]:
        """Return the subject of each event of this kind, such as ``worker 1``."""
        return [event.who for event in self.find_events(kind)]

    def read_log(self, process: str) -> str:
        return self.run.run_dir.log(process).read_text()

    def describe(self) -> str:
        """Return the outcome, events and logs, for the message of a failed test."""
        return f"{self.outcome}\n{describe_run(self.run)}"


Disturbance = Callable[[LiveRun], Awaitable[None]]


async def do_nothing(_running: LiveRun) -> None:
    """Leave the run alone."""


class Stage:
    """A place for runs that fork their workers from the session's warm process.

    Args:
        root: the folder of the run directories.
        warm: the socket of the warm process.
    """

    def __init__(self, root: Path, warm: Path) -> None:
        self._root = root
        self.warm_client = (
            sys.executable,
            "-S",
            "-E",
            str(Path(__file__).with_name("warm_client.py")),
            str(warm),
        )
        self.commands = Commands((*self.warm_client, "coordinator"), (*self.warm_client, "fork-server"))
        self._runs = 0
        self._preloaded: set[str] = set()

    def preload(self, *modules: str) -> None:
        """Import modules in the warm process, so that workers of later runs need not."""
        if self._preloaded.issuperset(modules):
            return
        self._preloaded.update(modules)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.warm_client[-1])
            connection.sendall(json.dumps({"program": "import", "arguments": modules}).encode())
            connection.recv(64)

    def build_command(
        self, module: str = "elastane.cli.main", *, silence_s: float = SILENCE_S, warm: bool = True
    ) -> tuple[str, ...]:
        """Return the command of an Elastane program; append its arguments.

        Args:
            module: has the function ``main`` of the program.
            silence_s: the field of the spec of the runs that it begins.
            warm: it uses the warm process.
        """
        main = Path(__file__).with_name("warm_main.py")
        client = self.warm_client if warm else ()
        return (sys.executable, "-P", str(main), module, str(silence_s), *client, "--")

    def play(
        self,
        *args: str,
        disturb: Disturbance = do_nothing,
        script: Path | str = "training.py",
        run_dir: Path | None = None,
        commands: Commands | None = None,
        **options: object,
    ) -> EndedRun:
        """Train from the first step to the end and return the run.

        Args:
            args: arguments of the script.
            disturb: disturbs the run while it trains.
            script: a file of ``scripts/``, or any path.
            run_dir: a new directory by default.
            commands: of coordinators and fork servers; by default the warm process forks both.
            options: fields of the `RunSpec`.
        """
        self._runs += 1
        limits = {"start": 1, "max_workers": VIRTUAL_RANKS, "digest_every": 5} | options
        spec = RunSpec(name=f"run-{self._runs}", script=str(SCRIPTS / script), args=args, **limits)
        with claim_run_directory(spec, run_dir or self._root / spec.name) as files:
            agent = make_agent(files, spec, commands or self.commands)
            outcome = asyncio.run(_play(agent, LiveRun(files, agent), disturb))
        return EndedRun(outcome, read_run(files))


def make_agent(run_dir: RunDir, spec: RunSpec, commands: Commands) -> Agent:
    """Return the agent of the machine on which a run begins."""
    if spec.listen:
        return NodeAgent(
            run_dir,
            spec,
            MachineAddress(spec.listen, spec.advertised, spec.ports),
            slots=None,
            begins=True,
            commands=commands,
        )
    return Agent(run_dir, spec, commands)


async def _play(agent: Agent, run: LiveRun, disturb: Disturbance) -> RunOver:
    training = asyncio.create_task(agent.run())
    disturbance = asyncio.create_task(disturb(run))
    try:
        async with asyncio.timeout(waiting.WAIT_S):
            await asyncio.wait((training, disturbance), return_when=asyncio.FIRST_COMPLETED)
            # A run that has ended fulfils no condition that its disturbance still waits for.
            if not disturbance.done():
                disturbance.cancel()
            await asyncio.wait((disturbance,))
            if not disturbance.cancelled():
                disturbance.result()
            return await training
    except TimeoutError:
        raise AssertionError(await _describe_hang(run, disturbance)) from None
    finally:
        if not training.done():
            agent.kill()
            await training


async def _describe_hang(run: LiveRun, disturbance: asyncio.Task[None]) -> str:
    """Describe a run that does not end; workers log the stacks of their threads when they get SIGUSR1."""
    workers = run.agent.workers.living
    for pid in workers.values():
        os.kill(pid, signal.SIGUSR1)
    await asyncio.sleep(1)  # not a wait: workers get a moment to log their stacks
    waits = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in disturbance.get_stack()]
    head = f"no end after {waiting.WAIT_S} s; alive: {dict(workers)}; the disturbance waits at {waits}"
    return f"{head}\n{describe_run(read_run(run.run_dir))}"


def describe_run(run: Recorded) -> str:
    """Return the events and the ends of the logs, for the message of a failed test."""
    lines = [f"{event.time:.3f} {event.kind} {event.who}: {event.why}" for event in run.events]
    logs = [f"--- {path.name}\n{path.read_text()[-6000:]}" for path in run.run_dir.logs.iterdir()]
    return "\n".join([f"{len(run.ledger)} steps", *lines, *logs])


def find_members(answer: Answer) -> set[int | None]:
    """Return the workers that are members of the newest generation."""
    return {
        row.worker
        for row in answer.processes
        if row.role == "worker" and row.state == "member" and row.generation == answer.generation
    }


def get_state(answer: Answer, worker: int) -> str:
    return next((row.state for row in answer.processes if row.worker == worker), "")


def get_pid(answer: Answer, role: str, worker: int | None = None) -> int:
    return next(row.pid for row in answer.processes if row.role == role and row.worker == worker)


def kill(answer: Answer, role: str, worker: int | None = None, number: int = signal.SIGKILL) -> int:
    pid = get_pid(answer, role, worker)
    os.kill(pid, number)
    return pid


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def add_worker_2_and_drain_worker_0(run: LiveRun) -> None:
    """Disturb a paced run of two workers: worker 2 joins, then worker 0 is drained."""
    await run.wait_for_step(4)
    await run.resize(3)
    await run.wait_for_event("worker.ready", "worker 2")
    await run.step_until(lambda answer: 2 in find_members(answer))
    answer = await run.ask(AskDrain(worker=0))
    assert answer.ok
    await run.step_until(lambda answer: get_state(answer, 0) == "")
    run.stop_pacing()


async def add_kill_and_drain_workers(run: LiveRun) -> None:
    """Disturb a paced run: it grows to three workers, worker 1 is killed, and worker 0 is drained."""
    await run.wait_for_step(1)
    await run.resize(3)
    for joiner in (1, 2):
        await run.wait_for_event("worker.ready", f"worker {joiner}")
    await run.step_until(lambda answer: len(find_members(answer)) == 3)
    kill(await run.wait_until(lambda _: True), "worker", 1)
    await run.step_until(lambda answer: len(find_members(answer)) >= 2 and 1 not in find_members(answer))
    await run.ask(AskDrain(worker=0))
    run.stop_pacing()
