"""Measure how long an agent takes from the start of its process to the first step of its worker.

``python benchmarks/agent_start.py --repetitions 20``: a real controller grows a running job by one agent, as
an engine would start it, and takes it away again. The step is the first line of the ledger in which a further
worker took part, by the time in that line. Beside it ``python -c "import torch"`` is timed in turn, while the
job trains as well: an agent cannot be faster than that. The parts of the time are read from the job's events.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import elastane
from elastane.cluster.client.cluster import Cluster
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_event_line, decode_ledger_line, read_lines

from agent_engine import ProcessEngine, open_cluster
from job import HERE
from machine import count_cores, describe_commit, find_cpu
from processes import exit_on_sigterm, wait_until
from spread import format_spread
from text import format_table

JOB = "timed"
WAIT_S = 300.0
CALM_STEPS = 10
TORCH = (sys.executable, "-P", "-c", "import torch")
PARTS = {
    "node.joined": "until the run knows its machine",
    "worker.started": "until its worker's process began",
    "worker.ready": "until its worker was ready",
}


class TimedJob:
    """One job that grows and shrinks by one agent.

    Args:
        home: of its controller.
    """

    def __init__(self, cluster: Cluster, engine: ProcessEngine, home: Path) -> None:
        self._cluster, self._engine = cluster, engine
        self._run_dir: RunDir = EngineDirectories(home).get_run_dir(JOB)
        sources = str(Path(elastane.__file__).parents[1])
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [sources, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        )
        spec = JobSpec(
            name=JOB,
            team="default",
            script=str(HERE / "train_calm.py"),
            elastic_policy=ElasticPolicy(min_replicas=1, max_replicas=1),
        )
        cluster.jobs.submit(spec, key=JOB)
        self.wait_for_workers(1)

    def read_ledger(self) -> tuple[LedgerLine, ...]:
        """Return the lines so far."""
        if not self._run_dir.ledger.exists():
            return ()
        return read_lines(self._run_dir.ledger, decode_ledger_line, torn_tail=True)

    def read_events(self) -> tuple[EventLine, ...]:
        """Return the events so far."""
        return read_lines(self._run_dir.events, decode_event_line, torn_tail=True)

    def wait_for_workers(self, count: int) -> None:
        """Wait for a step of this many workers, and some more of them."""
        known = len(self.read_ledger())

        def count_steps() -> int:
            return sum(len(line.workers) == count for line in self.read_ledger()[known:])

        wait_until(lambda: count_steps() >= CALM_STEPS, f"steps of {count} workers", WAIT_S, poll_s=0.2)

    def time_agent(self) -> dict[str, float]:
        """Grow the job by an agent and shrink it again.

        Returns:
            The seconds from the start of the agent's process to its worker's first step, and to the events of
            `PARTS` before it.
        """
        known, events = len(self.read_ledger()), len(self.read_events())
        agents = set(self._engine.began_s)
        self._cluster.jobs.scale(JOB, max_replicas=2, min_replicas=2)
        self.wait_for_workers(2)
        (agent,) = self._engine.began_s.keys() - agents
        began_s = self._engine.began_s[agent]
        first = next(line for line in self.read_ledger()[known:] if len(line.workers) == 2)
        found = {"first step": first.time - began_s}
        for event in self.read_events()[events:]:
            if event.kind in PARTS and event.time > began_s:
                found.setdefault(event.kind, event.time - began_s)
        self._cluster.jobs.scale(JOB, max_replicas=1, min_replicas=1)
        self.wait_for_workers(1)
        wait_until(lambda: self._engine.has_ended(agent), "the agent has ended", WAIT_S)
        return found


def time_import() -> float:
    """Return the seconds of a process that imports torch."""
    began = time.monotonic()
    subprocess.run(TORCH, check=True)
    return time.monotonic() - began


def measure(home: Path, repetitions: int) -> tuple[list[dict[str, float]], list[float]]:
    """Return the times of agents, and of processes that import torch."""
    engine = ProcessEngine(home / "outputs")
    with open_cluster(home, engine) as cluster:
        job = TimedJob(cluster, engine, home)
        agents: list[dict[str, float]] = []
        imports: list[float] = []
        for number in range(repetitions):
            imports.append(time_import())
            agents.append(job.time_agent())
            beyond = agents[-1]["first step"] - imports[-1]
            parts = describe_parts(agents[-1])
            print(f"{number + 1}. {parts}; beyond import torch: {beyond:.2f} s", flush=True)
        cluster.jobs.cancel(JOB)
        wait_until(engine.have_all_ended, "all agents have ended", WAIT_S)
    return agents, imports


def describe_parts(parts: dict[str, float]) -> str:
    """Return the seconds of one agent, in the order of time."""
    ordered = sorted(parts.items(), key=lambda part: part[1])
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in ordered)


def format_results(agents: Sequence[dict[str, float]], imports: Sequence[float]) -> str:
    """Return the table of all repetitions."""
    firsts = [one["first step"] for one in agents]
    beyond = [first - usual for first, usual in zip(firsts, imports, strict=True)]
    parts = [
        [f"agent, {text}", format_spread([one[kind] for one in agents if kind in one], "s")]
        for kind, text in PARTS.items()
    ]
    rows = [
        ["import torch", format_spread(imports, "s")],
        *parts,
        ["agent, until its worker's first step", format_spread(firsts, "s")],
        ["beyond import torch", format_spread(beyond, "s")],
        ["the same, from the medians", f"{median(firsts) - median(imports):.2f} s"],
    ]
    return format_table(["from the start of the process", "median (lowest to highest)"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="two repetitions, to try the program")
    options = parser.parse_args()
    exit_on_sigterm()
    repetitions = 2 if options.quick else options.repetitions
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ELASTANE_HOME"] = folder
        agents, imports = measure(Path(folder), repetitions)
    print(f"\n{find_cpu()}, {count_cores()} cores, commit {describe_commit()}, {repetitions} repetitions\n")
    print(format_results(agents, imports))


if __name__ == "__main__":
    main()
