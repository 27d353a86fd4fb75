"""A run on the two nodes of `NodeNetworks`, each with its own program ``elastane``."""

import signal
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from elastane.common.errors import ElastaneError
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.control import Answer, AskStatus, AskStop
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_event_line, decode_ledger_line, read_lines

import ticks
from elastane_run import ELASTANE
from job import Job
from node_networks import ADDRESSES, NodeNetworks
from node_programs import describe_exits
from processes import Processes, wait_until

FIRST = ""
"""The name of the node that begins the run."""
WAIT_S = 180.0


class NodeRun:
    """``with NodeRun(...) as run:`` ends every program with the block.

    Args:
        job: the job to train.
        folder: the folder of the run directory, the logs and the list of known runs.
        networks: the networks of the nodes.
        start: the number of workers at the start, all on the first node.
        most: the largest number of workers.
        options: more options of ``elastane run``.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        networks: NodeNetworks,
        *,
        start: int,
        most: int,
        options: tuple[str, ...] = (),
    ) -> None:
        self.job = job
        self.run_dir = RunDir((folder / "run").absolute())
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self._home = str((folder / "home").absolute())
        self._networks = networks
        self._processes = Processes(folder / "logs")
        self._joined = 0
        self._places: dict[str, int] = {}
        self._start(
            FIRST,
            0,
            *("run", "--listen", ADDRESSES[0], f"--workers=1:{most}", f"--start={start}", "--threads=1"),
            *("--checkpoint-every=never", f"--run-dir={self.run_dir.root}", *options),
            *job.build_script_command("elastane"),
        )
        wait_until(self.run_dir.endpoint.exists, "the run has begun", WAIT_S)

    def _start(self, name: str, node: int, *words: str) -> None:
        command = self._networks.wrap_command(node, [*ELASTANE, *words])
        self._places[name] = node
        self.programs[name] = self._processes.start(command, ELASTANE_HOME=self._home)

    def join(self, slots: int = 2) -> str:
        """Start a program on the node that has none; return its name in the run."""
        self._joined += 1
        name, taken = f"m{self._joined}", {self.find_place(other) for other in self.programs}
        self._start(
            name, min({0, 1} - taken), "join", str(self.run_dir.root), f"--slots={slots}", f"--name={name}"
        )
        return name

    def find_place(self, name: str) -> int:
        """Return the network of a program, 0 or 1."""
        return self._places[name]

    def ask(self) -> Answer | None:
        """Return the status of the run; None while no coordinator answers."""
        with suppress(ElastaneError):
            return ask_coordinator(self.run_dir, AskStatus(), 2.0)
        return None

    def wait_for_members(self, count: int, *, complete: bool = False) -> Answer:
        """Wait until the run has this many workers, all with the same members; return its status then.

        Args:
            complete: they also have all state that they fetch from others.
        """
        answers: list[Answer] = []

        def are_there() -> bool:
            answer = self.ask()
            if answer is None:
                return False
            answers.append(answer)
            members = [row for row in answer.processes if row.role == "worker" and row.state == "member"]
            agree = len(members) == count and len({row.generation for row in members}) == 1
            return agree and (not complete or all(row.blocks for row in members))

        wait_until(are_there, f"{count} members", WAIT_S)
        return answers[-1]

    def wait_for_loss(self, name: str) -> None:
        """Wait until the run has given up a node, which lowers the number of workers."""

        def is_lost() -> bool:
            answer = self.ask()
            return answer is not None and all(row.node != name for row in answer.processes)

        wait_until(is_lost, f"the loss of the node {name!r}", WAIT_S)

    def read_ledger(self) -> tuple[LedgerLine, ...]:
        return read_lines(self.run_dir.ledger, decode_ledger_line, torn_tail=True)

    def read_steps(self) -> list[ticks.Tick]:
        """Return the finished steps, with the numbers of their workers as the ledger says."""
        workers = {line.step: len(line.workers) for line in self.read_ledger()}
        return [replace(tick, workers=workers.get(tick.step, 0)) for tick in ticks.read_steps(self.job.out)]

    def count_discarded_steps(self, since_s: float) -> int:
        """Return how many steps were discarded since a monotonic time."""
        return ticks.count_discarded_steps(self.job.out, since_s)

    def describe_exit(self, node: int) -> str:
        """Return how a program of a node has ended by itself; an empty text while all run."""
        return describe_exits(
            program for name, program in self.programs.items() if self._places[name] == node
        )

    def read_events(self, *kinds: str) -> list[EventLine]:
        lines = read_lines(self.run_dir.events, decode_event_line, torn_tail=True)
        return [line for line in lines if line.kind in kinds]

    def count_steps(self) -> int:
        """Return the number of committed steps: the lines of the ledger, counted without decoding."""
        return self.run_dir.ledger.read_bytes().count(b"\n") if self.run_dir.ledger.exists() else 0

    def wait_for_step(self, step: int) -> None:
        wait_until(lambda: self.count_steps() >= step, f"step {step}", WAIT_S)

    def stop(self) -> None:
        """Stop the run, and wait for all programs."""
        ask_coordinator(self.run_dir, AskStop())
        for program in self.programs.values():
            # A stopped run ends with another code than 0.
            program.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = [program for program in self.programs.values() if program.poll() is None]
        for program in running:
            # Twice Ctrl-C: the agent itself ends its processes, in all sessions.
            program.send_signal(signal.SIGINT)
            program.send_signal(signal.SIGINT)
        for program in running:
            with suppress(subprocess.TimeoutExpired):
                program.wait(10)
        self._processes.__exit__(kind, error, trace)
