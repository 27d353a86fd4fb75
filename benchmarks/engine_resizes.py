"""Measure what the workers of a job feel of its resizes in a pool of any engine, through a controller.

``python benchmarks/engine_resizes.py a100 --repetitions 20``: the controller runs on this machine, at the
address of ``elastane login``, and ``a100`` is a device kind of one of its pools, in Slurm, Kubernetes, Ray,
or on this machine (`engine_latency` measures that without a controller too). A real job grows from one worker
to two and shrinks again, each time by ``elastane scale``, so the time until the new size includes the plan,
the queue of the engine, and the start of an agent.

``felt by the healthy`` is as in `engine_latency`; there are the figures of one machine to compare it with.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import elastane
from elastane.cluster.client.context import connect
from elastane.cluster.client.job_handle import JobHandle
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, WorkerResources
from elastane.run.nouns.records import LedgerLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_ledger_line
from elastane.run.observability.tail import Tail

import machine
from engine_latency import CALM_STEPS, Results, compute_effect, describe_effects, summarize

HERE = Path(__file__).parent
LOOK_S = 0.05
WAIT_S = 600.0
"""How long a change may take: an agent may wait in the queue of its engine."""


class ScaledJob:
    """One job with timed changes of its size."""

    def __init__(self, job: JobHandle) -> None:
        self._job = job
        self._tail: Tail | None = None
        self._lines: list[LedgerLine] = []
        self.resizes: list[tuple[float, int]] = []

    def read_ledger(self) -> list[LedgerLine]:
        """Return all lines so far, but read only new ones: the training needs the cores."""
        if self._tail is None and (where := self._job.read().run_dir):
            run_dir = RunDir(Path(where))
            self._tail = Tail(run_dir.files, run_dir.ledger)
        if self._tail is not None:
            self._lines += map(decode_ledger_line, self._tail.read_new_lines())
        return self._lines

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        give_up_s = time.monotonic() + WAIT_S
        while not done():
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"{what}: not within {WAIT_S:g} s; elastane explain {self._job.name}")
            time.sleep(LOOK_S)

    def wait_for_calm_steps(self) -> None:
        known = len(self.read_ledger())
        self.wait_until(lambda: len(self.read_ledger()) >= known + CALM_STEPS, "calm steps")

    def scale(self, workers: int) -> float:
        """Return the seconds from the request to the first step with this many workers."""
        known, asked_s = len(self.read_ledger()), time.time()
        self._job.scale(workers)
        self.wait_until(lambda: self._find_first(known, workers) is not None, f"{workers} workers train")
        first = self._find_first(known, workers)
        assert first is not None, "it was waited for"
        self.resizes.append((asked_s, workers))
        return first.time - asked_s

    def _find_first(self, known: int, workers: int) -> LedgerLine | None:
        new = self.read_ledger()[known:]
        return next((line for line in new if len(line.workers) == workers), None)

    def end(self) -> None:
        """Cancel the job, and wait until its processes are gone."""
        self._job.cancel()
        self.wait_until(lambda: self._job.read().state in ENDED, "it ends")


def measure_resizes(job: JobHandle, repetitions: int) -> Results:
    """Let a job with one worker grow and shrink; end it afterwards."""
    scaled = ScaledJob(job)
    took: dict[str, list[float]] = {"grow": [], "shrink": []}
    try:
        for _ in range(repetitions):
            scaled.wait_for_calm_steps()
            took["grow"].append(scaled.scale(2))
            scaled.wait_for_calm_steps()
            took["shrink"].append(scaled.scale(1))
        scaled.wait_for_calm_steps()
    finally:
        scaled.end()
    effects = [compute_effect(scaled.read_ledger(), asked_s, workers) for asked_s, workers in scaled.resizes]
    return {"seconds": {name: summarize(values) for name, values in took.items()}} | describe_effects(effects)


def build_spec(kind: str, team: str) -> JobSpec:
    # Each machine has such a folder, also one that shares no directory.
    out = Path(tempfile.gettempdir(), "elastane-ticks")
    script = ("train_elastane.py", "--size=1m", "--steps=1000000", "--virtual-ranks=4")
    return JobSpec(
        name=f"resizes-{time.time_ns()}",
        team=team,
        script=str(HERE / script[0]),
        args=(*script[1:], f"--out={out}"),
        env={"PYTHONPATH": str(Path(elastane.__file__).parents[1])},
        resources_per_worker=WorkerResources(kinds=(kind,)),
        elastic_policy=ElasticPolicy(min_replicas=1, max_replicas=1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", help="device kind of a pool; its machines see this directory")
    parser.add_argument("--repetitions", type=int, default=20, help="growths and shrinks")
    parser.add_argument("--team", default="default", help="team of the job")
    options = parser.parse_args()
    with connect() as cluster:
        spec = build_spec(options.kind, options.team)
        cluster.jobs.submit(spec, key=spec.name)
        results = measure_resizes(JobHandle(cluster, spec.name), options.repetitions)
    print(json.dumps({"machine": machine.describe(), "kind": options.kind, **results}, indent=2))


if __name__ == "__main__":
    main()
