"""Measure how many workers one coordinator serves.

A real coordinator process answers workers and agents that this process plays, over TLS on loopback: it opens
as many connections as they would, and sends what they would send. They train nothing, so a large run fits one
machine. All members report a step at the same moment, as after a commit, and twice a second themselves.
"""

import argparse
import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Self

import msgspec
from elastane.common.errors import NoSuchRun
from elastane.run.connections.coordinator_connection import open_async_connection, open_connection
from elastane.run.connections.endpoint import read_endpoint
from elastane.run.connections.run_certificate import create_certificate
from elastane.run.connections.short_reports import shorten_report, shorten_steps
from elastane.run.machines.claims.terms import TermOrder
from elastane.run.nouns import control
from elastane.run.nouns.machine_address import LOOPBACK_ONLY, publish_address
from elastane.run.nouns.membership import Generation, NodeAddress
from elastane.run.nouns.records import LedgerLine, Samples, Shares
from elastane.run.nouns.rundir import CLAIMS, RunDir
from elastane.run.nouns.silence_limits import SilenceLimits
from elastane.run.nouns.spec import Pinned, RunRecord, RunSpec
from elastane.run.worker.links.coordinator_link import CONNECT_TIMEOUT_S, RETRY_S
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

import machine
from processes import exit_on_sigterm, read_cpu_s
from spread import format_spread
from text import format_table

SECRET = token_hex(8)
AGENT_REPORT_S = 1.0
ON_A_MACHINE = 8
NUMBERS = 100
GIVE_UP_S = 120.0
LOOK_S = 0.02
ASK_EVERY_S = 0.7
decode = lru_cache(maxsize=16)(control.decode_to_worker)
"""A proposal is the same for all members."""
LINE = LedgerLine(
    step=0,
    generation=0,
    workers={},
    samples=Samples(0, 0, 8, 8, "0" * 16),
    loss=1.0,
    loss_hex=(1.0).hex(),
    time=0.0,
    seconds={"compute": 0.5, "deal": 0.1, "reduce": 0.2, "apply": 0.1, "step": 0.9},
)


@dataclass
class Figures:
    """The measurements of one number of workers, one of each for a repetition.

    Attributes:
        cores: the processor time of the coordinator in the steady state, in cores.
        answers_s: from a request to its answer, beside the steps.
        deaths_s: from the report of a death until the last survivor has the next generation.
        takeovers_s: from the death of the coordinator until the next one has acknowledged a later step to all
            workers.
    """

    cores: list[float] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)
    deaths_s: list[float] = field(default_factory=list)
    takeovers_s: list[float] = field(default_factory=list)


class Coordinators:
    """A run directory, and its coordinators: one in charge, and one that waits for its term."""

    def __init__(self, root: Path, workers: int) -> None:
        self.run_dir = RunDir(root)
        self.run_dir.logs.mkdir(parents=True)
        (root / CLAIMS).mkdir()
        spec = RunSpec(name="scale", script="train.py", start=workers, listen="127.0.0.1")
        record = RunRecord(spec=spec, created="2026-01-01T00:00:00Z")
        self.run_dir.run.write_bytes(msgspec.json.encode(record))
        self.run_dir.secret.write_text(SECRET)
        create_certificate(self.run_dir)
        publish_address(self.run_dir, LOOPBACK_ONLY)
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.lifeline, self.own_end = os.pipe()
        self.term = 0
        self.in_charge = self.standby = self._start()

    def __enter__(self) -> Self:
        self.begin_term()
        return self

    def __exit__(self, *_: object) -> None:
        for process in {self.in_charge, self.standby}:
            process.kill()
            process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [
            sys.executable,
            "-P",
            "-m",
            "elastane.run.coordinator",
            "--fd",
            str(self.listening.fileno()),
        ]
        command += ["--run-dir", str(self.run_dir.root), "--lifeline", str(self.lifeline)]
        keep = (self.listening.fileno(), self.lifeline)
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=keep)

    def begin_term(self) -> None:
        """Let the coordinator that waits begin its term, and start the next one."""
        self.term += 1
        self.in_charge = self.standby
        assert self.in_charge.stdin is not None
        self.in_charge.stdin.write(msgspec.json.encode(TermOrder(self.term)) + b"\n")
        self.in_charge.stdin.flush()
        self.standby = self._start()


class Player:
    """A process of the run: it stays connected to the coordinator in charge.

    Args:
        run: that it belongs to.
        every_s: the time between two reports.
    """

    def __init__(self, run: "PlayedRun", every_s: float) -> None:
        self.run, self.every_s = run, every_s
        self.connection: ClientConnection | None = None

    def build_report(self) -> control.ControlMessage:
        raise NotImplementedError

    def receive(self, frame: str | bytes) -> None:
        """Take a message of the coordinator."""

    async def begin(self) -> None:
        """Send what a new coordinator must know first."""
        await self.send(self.build_report())

    async def play(self) -> None:
        while True:
            with suppress(OSError, WebSocketException, NoSuchRun):
                async with self.run.connect() as connection:
                    self.connection = connection
                    await self.begin()
                    repeating = asyncio.create_task(self._repeat())
                    try:
                        async for frame in connection:
                            self.receive(frame)
                    finally:
                        repeating.cancel()
            self.connection = None
            await asyncio.sleep(RETRY_S)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(self.every_s)
            await self.send(self.build_report())

    async def send(self, message: control.ControlMessage) -> None:
        """Send a message now, if there is a connection."""
        if self.connection is not None:
            with suppress(OSError, WebSocketException):
                await self.connection.send(control.encode(message), text=True)


class PlayedWorker(Player):
    """A worker."""

    def __init__(self, run: "PlayedRun", worker: int) -> None:
        super().__init__(run, SilenceLimits().report_every_s)
        self.worker = worker
        self.newest: Generation | None = None
        self.crossed = False
        self.sent = self.acknowledged = 0
        self.shares: Shares = {}

    async def begin(self) -> None:
        self.crossed, self.sent, self.shares = False, 0, {}
        await super().begin()
        await self.report_steps()

    async def report_steps(self) -> None:
        """Report the steps that this connection does not know, and that are not acknowledged."""
        known = max(self.acknowledged, self.sent)
        lines = self.run.lines[known:]
        if self.newest is not None and lines:
            self.sent = lines[-1].step
            reports = [
                control.StepReport(worker=self.worker, line=line, step_s=0.9, healthy=True) for line in lines
            ]
            short = shorten_steps(reports, self.shares)
            self.shares = lines[-1].workers
            await self.send(control.StepReports(worker=self.worker, reports=short))

    def build_report(self) -> control.WorkerReport:
        number = 0 if self.newest is None else self.newest.number
        report = control.WorkerReport(
            worker=self.worker,
            pid=self.worker + 1,
            host="127.0.0.1",
            port=1024 + self.worker % 60_000,
            node=self.run.nodes[self.worker // NUMBERS].name,
            state="member" if number else "ready",
            generation=number,
            newest=self.newest,
            step=len(self.run.lines) if number else 0,
            complete=bool(number),
            virtual_ranks=1,
            blocks=10,
            compute_s=0.1,
            pinned=self.run.pinned,
        )
        short, self.crossed = self.crossed, True
        return shorten_report(report) if short else report

    def receive(self, frame: str | bytes) -> None:
        match decode(frame):
            case control.Propose(generation=generation):
                if self.newest is None:
                    # It takes part from the next step on.
                    self.acknowledged = len(self.run.lines)
                self.newest, self.crossed = generation, True
            case control.Acknowledge(step=step):
                self.acknowledged = max(self.acknowledged, step)
            case _:
                pass


class PlayedAgent(Player):
    """The agent of a machine."""

    def __init__(self, run: "PlayedRun", number: int, workers: list[int]) -> None:
        super().__init__(run, AGENT_REPORT_S)
        self.number, self.workers = number, workers
        self.exits: tuple[control.WorkerExit, ...] = ()

    def build_report(self) -> control.AgentReport:
        first = self.number * NUMBERS
        return control.AgentReport(
            pid=1,
            node=self.run.nodes[self.number].name,
            slots=len(self.workers),
            target=len(self.workers),
            total=self.run.target,
            nodes=self.run.nodes,
            numbers=((first + ON_A_MACHINE, first + NUMBERS),),
            term=self.run.coordinators.term,
            workers=tuple(
                control.ProcessInfo(role="worker", pid=worker + 1, worker=worker)
                for worker in self.workers
                if worker not in {end.worker for end in self.exits}
            ),
            exits=self.exits,
        )


class PlayedRun:
    """All workers and agents of a run.

    Args:
        coordinators: of the run.
        workers: how many there are.
    """

    def __init__(self, coordinators: Coordinators, workers: int) -> None:
        self.coordinators, self.target = coordinators, workers
        sizes = [min(ON_A_MACHINE, workers - first) for first in range(0, workers, ON_A_MACHINE)]
        self.nodes = tuple(
            NodeAddress(f"n{number}" if number else "", f"10.0.{number // 250}.{number % 250 + 1}", 7425)
            for number in range(len(sizes))
        )
        self.pinned = make_pinned(workers)
        self.lines: list[LedgerLine] = []
        self.agents = [
            PlayedAgent(self, number, [number * NUMBERS + place for place in range(size)])
            for number, size in enumerate(sizes)
        ]
        self.workers = {
            worker: PlayedWorker(self, worker) for agent in self.agents for worker in agent.workers
        }

    def connect(self) -> connect:
        endpoint = read_endpoint(self.coordinators.run_dir)
        return open_async_connection(
            endpoint,
            SECRET,
            largest_bytes=control.LARGEST_MESSAGE_BYTES,
            timeout_s=CONNECT_TIMEOUT_S,
            pings_s=None,
        )

    async def train(self, step_s: float) -> None:
        """Let all members commit steps, each at the same moment.

        Args:
            step_s: the time between two steps.
        """
        while True:
            begin_s = time.perf_counter()
            known = (worker.newest for worker in self.workers.values() if worker.newest is not None)
            generation = max(known, key=lambda newest: newest.number, default=None)
            if generation is not None:
                line = msgspec.structs.replace(
                    LINE,
                    step=len(self.lines) + 1,
                    generation=generation.number,
                    workers={worker: ((rank, rank + 1),) for rank, worker in enumerate(generation.workers)},
                    time=time.time(),
                )
                self.lines.append(line)
                await asyncio.gather(*(worker.report_steps() for worker in self.workers.values()))
            await asyncio.sleep(max(0.0, begin_s + step_s - time.perf_counter()))

    def ask(self) -> float:
        """Return how long the answer to a request takes, with the connection for it, in seconds."""
        begin_s = time.perf_counter()
        endpoint = read_endpoint(self.coordinators.run_dir)
        with open_connection(
            endpoint, SECRET, largest_bytes=control.LARGEST_MESSAGE_BYTES, timeout_s=GIVE_UP_S
        ) as connection:
            connection.send(control.encode(control.AskStatus()), text=True)
            connection.recv()
        return time.perf_counter() - begin_s

    async def wait_until(self, check: Callable[[PlayedWorker], bool]) -> float:
        """Wait until a check holds for all workers; return how long that took, in seconds.

        Raises:
            TimeoutError: it does not hold in time.
        """
        begin_s = time.perf_counter()
        while not all(map(check, self.workers.values())):
            if time.perf_counter() - begin_s > GIVE_UP_S:
                raise TimeoutError(f"the coordinator does not answer {len(self.workers)} workers")
            await asyncio.sleep(LOOK_S)
        return time.perf_counter() - begin_s


async def measure_run(run: PlayedRun, figures: Figures, seconds: float, step_s: float) -> None:
    """Measure one run: its steady state, a death, and the death of its coordinator."""
    async with asyncio.TaskGroup() as group:
        tasks = {player: group.create_task(player.play()) for player in (*run.agents, *run.workers.values())}
        training = group.create_task(run.train(step_s))
        await run.wait_until(
            lambda worker: worker.newest is not None and len(worker.newest.members) == run.target
        )
        await asyncio.sleep(2 * AGENT_REPORT_S)
        pid = run.coordinators.in_charge.pid
        used_s, begin_s = read_cpu_s(pid), time.perf_counter()
        answers_s = []
        while time.perf_counter() < begin_s + seconds:
            answers_s.append(await asyncio.to_thread(run.ask))
            await asyncio.sleep(ASK_EVERY_S)
        took_s = time.perf_counter() - begin_s
        figures.cores.append((read_cpu_s(pid) - used_s) / took_s)
        figures.answers_s.append(median(answers_s))

        agent = run.agents[-1]
        dead = run.workers.pop(agent.workers[-1])
        tasks.pop(dead).cancel()
        agent.exits = (control.WorkerExit(worker=dead.worker, pid=dead.worker + 1, code=-9),)
        await agent.send(agent.build_report())
        figures.deaths_s.append(await run.wait_until(lambda worker: dead.worker not in (worker.newest or ())))

        await asyncio.sleep(2 * AGENT_REPORT_S)
        run.coordinators.in_charge.kill()
        step = len(run.lines) + 1
        run.coordinators.begin_term()
        figures.takeovers_s.append(await run.wait_until(lambda worker: worker.acknowledged >= step))
        for task in (training, *tasks.values()):
            task.cancel()


def make_pinned(virtual_ranks: int) -> Pinned:
    return Pinned(
        script_digest="0" * 64,
        virtual_ranks=virtual_ranks,
        global_batch=virtual_ranks,
        microbatch=1,
        dataset_length=1_000_000,
        steps=1_000_000,
        seed=0,
        threads=1,
        convergence="exact",
        copies=None,
        parameters=1_000_000,
        blocks=10,
        layout_digest="0" * 64,
        optimizer="AdamW(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01)",
        versions={"elastane": "0.1.0", "torch": "2.13.0", "python": "3.11"},
    )


def render(measured: dict[int, Figures]) -> str:
    return format_table(
        ["workers", "the coordinator's cores", "an answer", "a death", "the coordinator dies"],
        [
            [
                f"{workers:,}",
                format_spread(figures.cores),
                *(
                    format_spread(values, "s", digits=3)
                    for values in (figures.answers_s, figures.deaths_s, figures.takeovers_s)
                ),
            ]
            for workers, figures in measured.items()
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="8,64,256,736", help="numbers of workers, with commas")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the steady state")
    parser.add_argument("--step-s", type=float, default=1.0, help="time between two steps")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    exit_on_sigterm()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    measured = {int(workers): Figures() for workers in options.workers.split(",")}
    for repetition in range(options.repetitions):
        for workers, figures in measured.items():
            with (
                tempfile.TemporaryDirectory(prefix="elastane-scale-") as work,
                Coordinators(Path(work) / "run", workers) as coordinators,
            ):
                run = PlayedRun(coordinators, workers)
                asyncio.run(measure_run(run, figures, options.seconds, options.step_s))
            print(f"{repetition}: {workers} workers, {figures.cores[-1]:.2f} cores", flush=True)
    print(f"\n{machine.find_cpu()}, commit {machine.describe_commit()}:\n")
    print(render(measured))


if __name__ == "__main__":
    main()
