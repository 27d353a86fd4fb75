"""A run on several machines, each with its own program ``elastane``, to be killed, stopped or joined."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from elastane.common.errors import ElastaneError
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.control import Answer, AskStatus, RunOver
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_events, read_run
from tests.waiting import WAIT_S, pause, wait_until

from .networks import Networks
from .stage import SCRIPTS, EndedRun, is_alive

FIRST = ""
SHORT_S = 2.0
ASKER = """
import pathlib, sys, msgspec
from elastane.run.nouns.control import AskStatus
from elastane.common.errors import ElastaneError
from elastane.run.nouns.rundir import RunDir
from elastane.run.connections.coordinator_request import ask_coordinator

for _ in sys.stdin:
    try:
        answer = ask_coordinator(RunDir(pathlib.Path(sys.argv[1])), AskStatus(), float(sys.argv[2]))
    except ElastaneError:
        answer = None
    print(msgspec.json.encode(answer).decode(), flush=True)
"""
"""Asks from the network of the first machine, which these tests are not in."""


class Machines:
    """The programs of a run on several machines.

    Args:
        run_dir: of the run.
        elastane: the command ``elastane``.
        networks: the network of each machine; None: all are on this one, at 127.0.0.2.
    """

    def __init__(self, run_dir: RunDir, elastane: Sequence[str], networks: Networks | None = None) -> None:
        self.run_dir = run_dir
        self._elastane, self._networks = elastane, networks
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._asker: subprocess.Popen[bytes] | None = None
        if networks is not None:
            command = [sys.executable, "-P", "-c", ASKER, str(run_dir.root), str(SHORT_S)]
            self._asker = subprocess.Popen(
                networks.wrap_command(0, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )

    def begin(
        self,
        *script_options: str,
        start: int = 2,
        options: Sequence[str] = (),
        network: int = 0,
        interface: str = "",
    ) -> None:
        """Begin the run on the first machine, which listens at the address of an interface or an IPv4 one."""
        inside = f"10.77.{network}.2" if network else "10.77.1.1"
        address = "127.0.0.2" if self._networks is None else inside
        listen = ("--listen", interface or address)
        self._start(
            FIRST,
            network,
            *("run", *listen, "--workers", "1:8", "--start", str(start)),
            *("--digest-every", "5", "--run-dir", str(self.run_dir.root), *options),
            *(str(SCRIPTS / "training.py"), *script_options),
        )
        wait_until(self.run_dir.endpoint.exists, "the run has begun")

    def join(
        self, name: str, network: int = 0, slots: int = 1, options: Sequence[str] = (), *, ticket: str = ""
    ) -> None:
        """Let another machine take part, with a ticket or with the run directory."""
        words = ("join", ticket or str(self.run_dir.root), "--slots", str(slots), "--name", name, *options)
        self._start(name, network, *words)

    def _start(self, name: str, network: int, *words: str) -> None:
        command = [*self._elastane, *words]
        if self._networks is not None:
            command = self._networks.wrap_command(network, command)
        environment = os.environ | {"ELASTANE_HOME": str(self.run_dir.root.parent / "home")}
        log = (self.run_dir.root.parent / f"{name or 'first'}.log").open("ab")
        with log:
            self._programs[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def ask(self) -> Answer | None:
        """Return the status of the run; None while no coordinator answers."""
        if self._asker is not None:
            assert self._asker.stdin is not None
            assert self._asker.stdout is not None
            self._asker.stdin.write(b"\n")
            self._asker.stdin.flush()
            return msgspec.json.decode(self._asker.stdout.readline(), type=Answer | None)
        with suppress(ElastaneError):
            return ask_coordinator(self.run_dir, AskStatus(), SHORT_S)
        return None

    def find_in_charge(self) -> str:
        """Return the machine whose coordinator answers."""
        answer = self.wait_for_answer()
        return next(row.node for row in answer.processes if row.state == f"term {answer.term}")

    def wait_for_answer(self) -> Answer:
        answer = wait_until(self.ask, "a coordinator answers")
        assert answer is not None
        return answer

    def count_members(self, node: str) -> int:
        """Return how many workers of a machine are members and hold their state.

        A member that joined fetches its state during its first steps; until then its peers may not die.
        """
        answer = self.ask()
        rows = () if answer is None else answer.processes
        workers = (row for row in rows if row.node == node and row.role == "worker")
        return sum(row.state == "member" and bool(row.blocks) for row in workers)

    def wait_for_members(self, node: str, count: int = 1) -> None:
        wait_until(lambda: self.count_members(node) == count, f"{count} members on {node or 'the first'}")

    def step_until_members(self, node: str, count: int = 1) -> None:
        """Let a paced run make one step after the other until so many workers of a machine are members."""
        self.step_until(
            f"{count} members on {node or 'the first'}", lambda: self.count_members(node) >= count
        )

    def step_until(self, what: str, happens: Callable[[], object]) -> None:
        """Let a paced run make one step after the other until something happens."""

        def make_step() -> None:
            if (answer := self.ask()) is not None:
                (self.run_dir.root / f"gate-{answer.step + 1}").touch()
            pause()

        wait_until(happens, what, meanwhile=make_step)

    def open_gates(self, last: int) -> None:
        """Let a paced run make its steps up to this one."""
        for step in range(last + 1):
            (self.run_dir.root / f"gate-{step}").touch()

    def count_steps(self) -> int:
        """Return the number of steps in the ledger."""
        ledger = self.run_dir.ledger
        return ledger.read_bytes().count(b"\n") if ledger.exists() else 0

    def stop_pacing(self) -> None:
        """Let a paced run make all its remaining steps."""
        (self.run_dir.root / "gates").touch()

    def hurry(self) -> None:
        """Let a run with slow steps make all its remaining steps fast."""
        (self.run_dir.root / "hurry").touch()

    def count_events(self) -> Counter[tuple[str, str]]:
        return Counter((event.kind, event.who) for event in read_events(self.run_dir, torn_tail=True))

    def list_died(self) -> list[str]:
        """Return the workers that have died."""
        return [who for kind, who in self.count_events() if kind == "worker.died"]

    def wait_for(self, kind: str, who: str, times: int = 1) -> None:
        wait_until(lambda: self.count_events()[kind, who] >= times, f"{kind} of {who}")

    def list_pids(self, node: str) -> list[int]:
        """Return all processes on a machine, the agent first; wait until it has a standby."""

        def find_pids() -> list[int]:
            rows = [row for row in self.wait_for_answer().processes if row.node == node]
            return [row.pid for row in rows] if any(row.state == "standby" for row in rows) else []

        found = wait_until(find_pids, f"{node or 'the first'} has a standby")
        return [self._programs[node].pid, *(pid for pid in found if pid != self._programs[node].pid)]

    def kill(self, node: str) -> None:
        """Kill everything on a machine at once."""
        self.signal(self.list_pids(node), signal.SIGKILL)

    def signal(self, pids: Sequence[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def read_log(self, node: str) -> str:
        """Return what the program of a machine has printed."""
        return (self.run_dir.root.parent / f"{node}.log").read_text()

    def wait(self, node: str) -> int:
        """Wait for the end of the program of a machine; return its exit code."""
        return self._programs[node].wait(WAIT_S)

    def end(self, node: str) -> EndedRun:
        """Wait for the end of the run on a machine that takes part to the end."""
        code = self.wait(node)
        for other in self._programs:
            if is_alive(self._programs[other].pid):
                self.wait(other)
        return EndedRun(RunOver(code=code), read_run(self.run_dir))

    def close(self) -> None:
        if self._asker is not None:
            self._asker.kill()
            self._asker.communicate()
        for program in self._programs.values():
            if program.poll() is None:
                program.kill()
            program.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
