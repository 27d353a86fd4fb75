"""Grow, shrink and kill a training in a Ray cluster: Elastane's engine and Ray Train's elastic trainer.

Both train the same model with the same batch on the same nodes, in turns, with a checkpoint every ten steps.
Each begins on one node. Then a second node joins, a worker is killed, and the second node is drained, ends
half a minute later, joins again, and is killed. Ray Train restarts all workers from its newest checkpoint.

The pause of a change is the longest time without a new step, from the change until three new steps were made
at the size after it. It does not depend on how long a contestant takes to notice another node.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import elastane
import elastane.ray
from elastane.cluster.client.context import connect
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.cluster.nouns.config import DeclaredEngine, SchedulingRules
from elastane.cluster.nouns.jobs import JobTraining
from elastane.cluster.nouns.pools import Pool
from elastane.common.errors import ElastaneError
from elastane.run.nouns.checkpoint_policy import CheckpointSettings
from elastane.run.observability.run_files import decode_ledger_line, read_lines

import ticks
import workload
from calm import wait_for_calm
from elastane_run import ELASTANE
from job import HERE, Job
from machine import count_cores, describe_commit, find_cpu
from node_networks import enter_first_node
from processes import Processes, exit_on_sigterm, wait_until
from ray_cluster import ADDRESS, FIRST, ON_LOOPBACK, SECOND, RayCluster
from restart import count_lost_steps, find_longest_stall_s
from spread import format_spread
from text import format_table

VIRTUAL_RANKS = 4
ENDLESS = 1_000_000
CHECKPOINT_EVERY_STEPS = 10
NOTICE_S = 30
"""How long before its end a node is drained: the notice of the strictest clouds."""
AFTERWARDS_STEPS = 3
WITHIN_S = 240.0
POLL_S = 0.1
JOB = "timed"
URL = "127.0.0.1:7425"


class Contestant(Protocol):
    """A training in the Ray cluster, which takes the nodes that are there."""

    def read_steps(self) -> list[ticks.Tick]:
        """Return the finished steps, with the numbers of their workers."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class RayTrain:
    """Ray Train's elastic trainer. The driver ends with the block, and all its actors with it."""

    def __init__(self, job: Job, cluster: RayCluster) -> None:
        self._job = job
        self._processes = Processes(job.out / "logs")
        words = [cluster.python, *job.build_script_command("ray")]
        self._processes.start(words, **{ADDRESS: cluster.address}, **dict([ON_LOOPBACK]))

    def read_steps(self) -> list[ticks.Tick]:
        return ticks.read_steps(self._job.out)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.__exit__(kind, error, trace)


class ElastaneInRay:
    """A controller with an engine of kind ray, and a job."""

    def __init__(self, job: Job, cluster: RayCluster) -> None:
        self._job = job
        home = job.out / "home"
        os.environ["ELASTANE_HOME"] = str(home)
        self._run_dir = EngineDirectories(home).get_run_dir(JOB)
        self._processes = Processes(job.out / "logs")
        try:
            self._processes.start([*ELASTANE, "up", f"--listen={URL}"], **dict([ON_LOOPBACK]))
            wait_until((home / "cluster.json").exists, "the controller listens")
            sources = str(Path(elastane.__file__).parents[1])
            self._declare(cluster, sources)
            every = CheckpointSettings(every=f"{CHECKPOINT_EVERY_STEPS} steps")
            self._handle = elastane.ray.submit(
                HERE / "train_elastane.py",
                num_workers=(1, 2),
                args=job.build_arguments(),
                name=JOB,
                env={"PYTHONPATH": sources},
                training=JobTraining(checkpoints=every),
            )
        except BaseException:
            self._processes.__exit__(None, None, None)
            raise

    def _declare(self, cluster: RayCluster, sources: str) -> None:
        options = {
            "address": cluster.address,
            "python": cluster.python,
            "setup": f"export PYTHONPATH={sources}",
            "answer": "15s",
        }
        with connect() as controller:
            controller.documents.declare(DeclaredEngine(name="ray", kind="ray", options=options))
            pool = Pool(name="nodes", device="node", devices=0, engine="ray", options={"resource": "CPU"})
            controller.documents.declare(pool)
            # On a machine with few cores a second worker adds little speed.
            controller.documents.set_rules(SchedulingRules(cooldown_s=1.0, min_run_time_s=1.0, worth=0.0))

    def read_steps(self) -> list[ticks.Tick]:
        ledger = read_lines(self._run_dir.ledger, decode_ledger_line, torn_tail=True)
        workers = {line.step: len(line.workers) for line in ledger}
        return [replace(tick, workers=workers.get(tick.step, 0)) for tick in ticks.read_steps(self._job.out)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A controller that has died does not answer; then its agents end with the Ray cluster.
        with self._processes, self._handle, suppress(ElastaneError):
            self._handle.cancel()
            self._handle.wait()


CONTESTANTS: dict[str, Callable[[Job, RayCluster], Contestant]] = {
    "Elastane": ElastaneInRay,
    "Ray Train": RayTrain,
}


@dataclass(frozen=True)
class Outcome:
    """What a change costs.

    Args:
        usual_s: the usual step before it, in seconds.
        pause_s: the longest time without a new step, in seconds.
        until_s: the time until the first step at the size after it, in seconds.
        repeated_steps: the steps that were made again.
    """

    usual_s: float
    pause_s: float
    until_s: float
    repeated_steps: int


Change: TypeAlias = Callable[[RayCluster, list[ticks.Tick]], None]


def join(cluster: RayCluster, _: list[ticks.Tick]) -> None:
    cluster.start(SECOND)


def kill_worker(_: RayCluster, steps: list[ticks.Tick]) -> None:
    """Kill the worker that began last, of those that made the newest step."""
    newest = max(tick.step for tick in steps)
    first_s: dict[int, float] = {}
    for tick in steps:
        first_s.setdefault(tick.pid, tick.at_s)
    members = (tick.pid for tick in steps if tick.step >= newest - 1)
    os.kill(max(members, key=first_s.__getitem__), signal.SIGKILL)


def leave(cluster: RayCluster, _: list[ticks.Tick]) -> None:
    """Drain the second node, and end it when its notice is over."""
    end_s = time.monotonic() + NOTICE_S
    cluster.drain(SECOND, NOTICE_S)
    wait_until(lambda: time.monotonic() >= end_s, "the notice is over", 2 * NOTICE_S, POLL_S)
    cluster.end(SECOND)


def kill_node(cluster: RayCluster, _: list[ticks.Tick]) -> None:
    cluster.end(SECOND)


JOIN, KILL_WORKER, LEAVE, KILL_NODE = (
    "a node joins",
    "`kill -9` of a worker",
    f"a node is drained, and ends after {NOTICE_S} s",
    "a node is killed",
)
CHANGES: dict[str, tuple[Change, int]] = {
    JOIN: (join, 2),
    KILL_WORKER: (kill_worker, 2),
    LEAVE: (leave, 1),
    KILL_NODE: (kill_node, 1),
}
"""By name: what is done, and the workers afterwards."""
ORDER = (JOIN, KILL_WORKER, LEAVE, JOIN, KILL_NODE)


def select_resized(
    seen: list[ticks.Tick], since_s: float, workers: int, known: Collection[int]
) -> list[ticks.Tick]:
    """Return the ticks of steps after a change.

    Args:
        seen: the ticks of all steps.
        since_s: when the change was made.
        workers: the number of workers after it. With two, one of them must be new: after a death there are
            as many workers as before.
        known: the processes before the change.
    """
    after = [tick for tick in seen if tick.at_s > since_s and tick.workers == workers]
    fresh = {tick.step for tick in after if workers == 1 or tick.pid not in known}
    return [tick for tick in after if tick.step in fresh]


def count_new_steps(seen: list[ticks.Tick], resized: Collection[ticks.Tick]) -> int:
    """Count the steps of some ticks that no other tick has reached."""
    furthest = max((tick.step for tick in seen if tick not in resized), default=0)
    return len({tick.step for tick in resized if tick.step > furthest})


def watch(run: Contestant, cluster: RayCluster, name: str, calm_steps: int) -> Outcome:
    """Make a change, and wait for new steps at the size after it."""
    change, workers = CHANGES[name]
    usual_s = wait_for_calm(run.read_steps, 1 if name == JOIN else 2, calm_steps, WITHIN_S)
    before = run.read_steps()
    known, began_s = {tick.pid for tick in before}, time.monotonic()
    change(cluster, before)
    # A node that ends after a notice is at its place until then.
    changed_s = time.monotonic() if name == LEAVE else began_s

    def is_over() -> bool:
        seen = run.read_steps()
        return count_new_steps(seen, set(select_resized(seen, changed_s, workers, known))) >= AFTERWARDS_STEPS

    wait_until(is_over, f"new steps after: {name}", WITHIN_S, POLL_S)
    end_s, seen = time.monotonic(), run.read_steps()
    return Outcome(
        usual_s,
        find_longest_stall_s(seen, began_s, end_s),
        select_resized(seen, changed_s, workers, known)[0].at_s - began_s,
        count_lost_steps(seen, began_s, end_s),
    )


Found: TypeAlias = dict[str, dict[str, list[Outcome]]]


def format_found(found: Found) -> str:
    """Return the table of all changes, by contestant and change."""
    rows = []
    for name in CHANGES:
        both = [found[contestant][name] for contestant in CONTESTANTS]
        if not all(both):
            continue
        ours_s, theirs_s = (median(each.pause_s for each in some) for some in both)

        def add(label: str, key: str, both: list[list[Outcome]] = both) -> list[str]:
            unit, digits = ("s", 2) if key.endswith("_s") else ("", 0)
            values = [[getattr(each, key) for each in some] for some in both]
            return [label, *(format_spread(some, unit, digits=digits) for some in values)]

        rows.append([name, *add("pause", "pause_s"), f"{ours_s / theirs_s:.3f}"])
        rows.append(["", *add("steps trained twice", "repeated_steps"), ""])
        rows.append(["", *add("until a step at that size", "until_s"), ""])
        rows.append(["", *add("usual step before", "usual_s"), ""])
    return format_table(["change", "", *CONTESTANTS, "ratio of the pauses"], rows)


def measure(name: str, cluster: RayCluster, job: Job, calm_steps: int, found: Found) -> None:
    """Let a contestant train through all changes."""
    with CONTESTANTS[name](job, cluster) as run:
        try:
            for change in ORDER:
                found[name][change].append(outcome := watch(run, cluster, change, calm_steps))
                print(f"{name}: {change}: {outcome}", flush=True)
        finally:
            cluster.end(SECOND)


def describe_ray(python: str) -> str:
    """Return the versions of an interpreter."""
    program = (
        "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in ('ray', 'torch')), sep=', ')"
    )
    return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ray", default=sys.executable, help="a Python that has torch and ray[train]")
    parser.add_argument("--size", choices=list(workload.SIZES), default="4m")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", choices=list(CONTESTANTS), help="one contestant, to try the harness")
    parser.add_argument("--quick", action="store_true", help="a small model and one repetition")
    options = parser.parse_args()
    enter_first_node()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    exit_on_sigterm()
    repetitions, size = (1, "1m") if options.quick else (options.repetitions, options.size)
    # No multiple of the steps between two checkpoints: a change comes about halfway between them.
    calm_steps = 15 if options.quick else 25
    found: Found = defaultdict(lambda: defaultdict(list))
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    print(f"logs in {folder}", flush=True)
    with RayCluster(folder / "ray", options.ray) as cluster:
        cluster.start(FIRST)
        contestants = [options.only] if options.only else list(CONTESTANTS)
        for repetition, name in product(range(repetitions), contestants):
            job = Job(size, ENDLESS, VIRTUAL_RANKS, folder / f"{repetition}-{name.replace(' ', '-')}")
            measure(name, cluster, job, calm_steps, found)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{find_cpu()}, {count_cores()} cores, commit {describe_commit()}")
    print(f"model {size}, {repetitions} repetitions, {describe_ray(options.ray)}\n")
    print(format_found(found))


if __name__ == "__main__":
    main()
