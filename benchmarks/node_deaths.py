"""Kill machines of a run, one after the other, and compare every digest with a run of one worker.

Each machine is an agent with its workers and a standby coordinator, here at an address of this machine. A
death kills all processes of a machine at once, or stops them, as if the machine had lost its power: nothing
closes a connection then. After each death another machine joins. The time counts to the commit of the next
step.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from elastane.api.control import Answer, AskStatus, AskStop
from elastane.api.errors import ElastaneError
from elastane.api.records import LedgerLine
from elastane.api.rundir import RunDir
from elastane.client.coordinator_request import ask_coordinator
from elastane.observability.run_files import decode_ledger_line, read_lines

from elastane_run import ELASTANE
from job import Job
from machine import describe_commit, find_cpu
from processes import Processes, exit_on_sigterm, wait_until

ADDRESS = "127.0.0.2"
VIRTUAL_RANKS = 4
DIGEST_EVERY = 5
SETTLED_STEPS = 10
WAIT_S = 180.0

Victim = Literal["in charge", "another"]


class Cluster:
    """A run on two machines of two workers each, of which one dies at a time."""

    def __init__(self, job: Job, folder: Path, processes: Processes) -> None:
        self.run_dir = RunDir((folder / "run").absolute())
        self._home = str((folder / "home").absolute())
        self._processes = processes
        self._joined = 0
        self.machines: dict[str, subprocess.Popen[bytes]] = {}
        self._start(
            "",
            *("run", "--listen", ADDRESS, "--workers=1:4", "--start=2", "--threads=1"),
            *(f"--digest-every={DIGEST_EVERY}", "--checkpoint-every=never", f"--run-dir={self.run_dir.root}"),
            *job.build_script_command("elastane"),
        )
        wait_until(self.run_dir.endpoint.exists, "the run has begun", WAIT_S)

    def _start(self, name: str, *words: str) -> None:
        self.machines[name] = self._processes.start([*ELASTANE, *words], ELASTANE_HOME=self._home)

    def join(self) -> str:
        self._joined += 1
        name = f"m{self._joined}"
        self._start(name, "join", str(self.run_dir.root), "--slots=2", f"--name={name}")
        return name

    def ask(self) -> Answer | None:
        with suppress(ElastaneError):
            return ask_coordinator(self.run_dir, AskStatus(), 2.0)
        return None

    def wait_for_members(self, count: int) -> Answer:
        answers: list[Answer] = []

        def are_there() -> bool:
            answer = self.ask()
            if answer is None:
                return False
            answers.append(answer)
            members = [row for row in answer.processes if row.role == "worker" and row.state == "member"]
            return len(members) == count and len({row.generation for row in members}) == 1

        wait_until(are_there, f"{count} members", WAIT_S)
        return answers[-1]

    def read_ledger(self) -> tuple[LedgerLine, ...]:
        return read_lines(self.run_dir.ledger, decode_ledger_line, torn_tail=True)

    def wait_for_step(self, step: int) -> None:
        def is_made() -> bool:
            ledger = self.read_ledger()
            return bool(ledger) and ledger[-1].step >= step

        wait_until(is_made, f"step {step}", WAIT_S)

    def end_machine(self, answer: Answer, victim: Victim, number: signal.Signals) -> float:
        """End a machine with all its processes; return the seconds until the commit of the next step."""
        in_charge = next(row.node for row in answer.processes if row.state == f"term {answer.term}")
        name = next(name for name in self.machines if (name == in_charge) == (victim == "in charge"))
        program = self.machines.pop(name)
        pids = {program.pid, *(row.pid for row in answer.processes if row.node == name)}
        workers = {row.worker for row in answer.processes if row.node == name}
        began_s = time.time()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

        def is_committed_without() -> bool:
            ledger = self.read_ledger()
            return bool(ledger) and workers.isdisjoint(ledger[-1].workers)

        wait_until(is_committed_without, "a step without the dead machine", WAIT_S)
        first = next(
            line for line in self.read_ledger() if line.time > began_s and workers.isdisjoint(line.workers)
        )
        for pid in pids if number == signal.SIGSTOP else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return first.time - began_s

    def stop(self) -> None:
        ask_coordinator(self.run_dir, AskStop())
        for program in self.machines.values():
            program.wait(60)


def read_digests(ledger: tuple[LedgerLine, ...]) -> dict[int, tuple[str, str]]:
    """Return the digests of each step, without the last step of a run that was stopped at another one."""
    return {
        line.step: (line.digest.parameters, line.digest.optimizer)
        for line in ledger
        if line.digest and line.step % DIGEST_EVERY == 0
    }


def train_reference(job: Job, folder: Path, steps: int) -> dict[int, tuple[str, str]]:
    """Return the digests of one undisturbed worker up to a step."""
    run_dir = RunDir((folder / "reference").absolute())
    with Processes(folder / "reference-log") as processes:
        main = processes.start(
            [
                *(*ELASTANE, "run", "--workers=1:1", "--threads=1", f"--digest-every={DIGEST_EVERY}"),
                *("--checkpoint-every=never", f"--run-dir={run_dir.root}"),
                *job.build_script_command("elastane"),
            ],
            ELASTANE_HOME=str(folder / "reference-home"),
        )

        def is_far_enough() -> bool:
            last = read_lines(run_dir.ledger, decode_ledger_line, torn_tail=True)[-1:]
            return bool(last) and last[0].step >= steps

        wait_until(is_far_enough, f"step {steps} of the reference", 3600)
        main.send_signal(signal.SIGINT)
        main.wait(60)
    return read_digests(read_lines(run_dir.ledger, decode_ledger_line, torn_tail=True))


def describe(times: list[float]) -> str:
    return f"median {statistics.median(times):.2f} s, {min(times):.2f} to {max(times):.2f} s, of {len(times)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--victim", choices=("in charge", "another"), default="in charge")
    parser.add_argument("--stop", action="store_true", help="stop the processes (SIGSTOP) in place of a kill")
    parser.add_argument("--size", default="1m")
    options = parser.parse_args()
    exit_on_sigterm()
    number = signal.SIGSTOP if options.stop else signal.SIGKILL
    times: list[float] = []
    with tempfile.TemporaryDirectory() as created, Processes(Path(created) / "logs") as processes:
        folder = Path(created)
        job = Job(options.size, 1_000_000, VIRTUAL_RANKS, folder / "ticks")
        cluster = Cluster(job, folder, processes)
        for kill in range(options.kills):
            cluster.join()
            answer = cluster.wait_for_members(4)
            cluster.wait_for_step(answer.step + SETTLED_STEPS)
            times.append(cluster.end_machine(cluster.wait_for_members(4), options.victim, number))
            print(f"{kill + 1}: {times[-1]:.2f} s", flush=True)
        cluster.wait_for_step(cluster.read_ledger()[-1].step + SETTLED_STEPS)
        cluster.stop()
        ledger = cluster.read_ledger()
        reference = train_reference(job, folder, len(ledger))
    digests = read_digests(ledger)
    equal = all(reference[step] == digest for step, digest in digests.items())
    gapless = [line.step for line in ledger] == list(range(1, len(ledger) + 1))
    how = "stopped" if options.stop else "killed"
    print(f"{find_cpu()}, commit {describe_commit()}, job {options.size}, two machines of two workers")
    print(f"a machine is {how}, the one {options.victim}: {describe(times)}")
    print(f"{len(ledger)} steps, the ledger has {'no gap' if gapless else 'GAPS'}")
    print(f"{len(digests)} digests, {'all equal to one worker' if equal else 'DIFFERENT from one worker'}")
    return 0 if equal and gapless else 1


if __name__ == "__main__":
    sys.exit(main())
