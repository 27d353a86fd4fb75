"""End nodes of a run, one after the other, and compare every digest with a run of one worker.

The nodes are network namespaces of this machine with two workers each. A death kills all processes of a node
at once, or stops them as if the node had lost its power, or cuts its link: nothing closes a connection then.
After each death another node joins. The time counts to the commit of the next step.
"""

import argparse
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elastane.run.nouns.records import LedgerLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_ledger_line, read_lines

from elastane_run import ELASTANE
from job import Job
from machine import describe_commit, find_cpu
from node_networks import End, NodeNetworks, enter_first_node
from node_run import WAIT_S, NodeRun
from processes import Processes, exit_on_sigterm, wait_until
from spread import format_spread
from text import format_table

VIRTUAL_RANKS = 4
DIGEST_EVERY = 5
SETTLED_STEPS = 10


@dataclass(frozen=True)
class Death:
    """A way in which a node goes.

    Args:
        victim: the node.
        how: what happens to it.
        target_s: the longest time until the commit of the next step, in seconds.
    """

    victim: Literal["in charge", "another"]
    how: End
    target_s: float

    def describe(self) -> str:
        node = "the coordinator's node" if self.victim == "in charge" else "another node"
        return f"{node} is {self.how}"


# The link of two nodes cuts off the one without the coordinator, whichever end it is cut at.
DEATHS = (
    Death("another", "killed", 3.5),
    Death("in charge", "killed", 5.5),
    Death("another", "stopped", 3.5),
    Death("in charge", "stopped", 5.5),
    Death("another", "cut off", 3.5),
)


def end_node(run: NodeRun, networks: NodeNetworks, death: Death) -> float:
    """End a node; return the seconds until the commit of the first step without it."""
    answer = run.wait_for_members(4)
    in_charge = next(row.node for row in answer.processes if row.state == f"term {answer.term}")
    name = next(name for name in run.programs if (name == in_charge) == (death.victim == "in charge"))
    run.programs.pop(name)
    workers = {row.worker for row in answer.processes if row.node == name}

    def is_committed_without() -> bool:
        ledger = run.read_ledger()
        return bool(ledger) and workers.isdisjoint(ledger[-1].workers)

    began_s = time.time()
    networks.end(run.find_place(name), death.how)
    wait_until(is_committed_without, "a step without the dead node", WAIT_S)
    # A node that was stopped or cut off would take part again.
    networks.clear(run.find_place(name))
    run.wait_for_loss(name)
    return next(
        line.time - began_s
        for line in run.read_ledger()
        if line.time > began_s and workers.isdisjoint(line.workers)
    )


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


def measure(
    job: Job, folder: Path, networks: NodeNetworks, repetitions: int
) -> tuple[dict[Death, list[float]], tuple[LedgerLine, ...]]:
    """Return the seconds of each death, in turns, and the ledger of the run."""
    found: dict[Death, list[float]] = {death: [] for death in DEATHS}
    options = (f"--digest-every={DIGEST_EVERY}",)
    with NodeRun(job, folder / "nodes", networks, start=2, most=4, options=options) as run:
        for repetition in range(repetitions):
            for death, times in found.items():
                run.join()
                run.wait_for_step(run.wait_for_members(4).step + SETTLED_STEPS)
                times.append(end_node(run, networks, death))
                print(f"{repetition + 1}. {death.describe()}: {times[-1]:.2f} s", flush=True)
        run.wait_for_step(run.count_steps() + SETTLED_STEPS)
        run.stop()
        return found, run.read_ledger()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--size", default="1m")
    parser.add_argument("--quick", action="store_true", help="one repetition, to try the program")
    options = parser.parse_args()
    enter_first_node()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as created, NodeNetworks() as networks:
        folder = Path(created)
        job = Job(options.size, 1_000_000, VIRTUAL_RANKS, folder / "ticks")
        found, ledger = measure(job, folder, networks, 1 if options.quick else options.repetitions)
        reference = train_reference(job, folder, len(ledger))
    digests = read_digests(ledger)
    equal = all(reference[step] == digest for step, digest in digests.items())
    gapless = [line.step for line in ledger] == list(range(1, len(ledger) + 1))
    print(f"\n{find_cpu()}, commit {describe_commit()}, job {options.size}, two nodes of two workers\n")
    rows = [
        [death.describe(), format_spread(times, "s"), f"at most {death.target_s} s"]
        for death, times in found.items()
    ]
    print(format_table(["", "until the commit of the next step", "target"], rows))
    print(f"\n{len(ledger)} steps, the ledger has {'no gap' if gapless else 'GAPS'}")
    print(f"{len(digests)} digests, {'all equal to one worker' if equal else 'DIFFERENT from one worker'}")
    return 0 if equal and gapless else 1


if __name__ == "__main__":
    sys.exit(main())
