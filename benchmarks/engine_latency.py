"""Measure the time from the controller's decision to the first step at the new size, on the local engine.

``python benchmarks/engine_latency.py --repetitions 20``: a real job grows, shrinks, is paused and is resumed.
Every order goes through `LocalEngine`, as the controller's do. The decision is the moment before the order is
executed. The step is the first line of the ledger with the new number of workers, by the time in that line.

The effect on a healthy worker is its slowest step from the decision to the first one at the new size, that
one included, divided by a usual step at the old or the new size, whichever is longer; 1.0 means none.
``calm`` is the slowest of as many steps just before the decision, divided by a usual one: the noise of the
machine. ``pause_s`` is how much longer the first step at the new size took than the usual ones at that size:
on two cores, two workers that compute leave no core for a joiner.

One observation of many jobs is timed too.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple, TypeAlias

import elastane
import msgspec
from elastane.cluster.engines.local.engine import EngineDirectories, LocalEngine
from elastane.cluster.nouns.engine import (
    KillAttempt,
    Observation,
    Order,
    ResizeJob,
    SettleJob,
    StartAttempt,
    StopAttempt,
)
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.run.nouns.attempts import Attempt, AttemptOutcome
from elastane.run.nouns.records import LedgerLine
from elastane.run.observability.run_files import decode_ledger_line
from elastane.run.observability.tail import Tail

import machine

HERE = Path(__file__).parent
JOB = "timed"
WAIT_S = 60
CALM_STEPS = 20
GROWTHS_PER_ATTEMPT = 5
SETTLED, WAITING = 10_000, 1_000
Spread: TypeAlias = dict[str, float]
Results: TypeAlias = dict[str, dict[str, Spread]]


class TimedJob:
    """One job with timed changes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.engine = LocalEngine(home)
        self.run_dir = EngineDirectories(home).get_run_dir(JOB)
        self.tail = Tail(self.run_dir.files, self.run_dir.ledger)
        self.lines: list[LedgerLine] = []
        self.resizes: list[tuple[float, int]] = []
        script = ("train_elastane.py", "--size=1m", "--steps=1000000", "--virtual-ranks=4")
        self.spec = JobSpec(
            name=JOB,
            team="t",
            script=str(HERE / script[0]),
            args=(*script[1:], f"--out={home / 'ticks'}"),
            env={"PYTHONPATH": str(Path(elastane.__file__).parents[1])},
            elastic_policy=ElasticPolicy(max_replicas=2),
        )

    async def execute(self, order: Order) -> None:
        refused = await self.engine.carry_out([order])
        if refused:
            raise RuntimeError(f"{order}: {refused}")

    async def wait_until(self, done: Callable[[Observation], bool]) -> Observation:
        async with asyncio.timeout(WAIT_S):
            while not done(seen := (await self.engine.observe([JOB]))[JOB]):  # noqa: ASYNC110 - an observation is not an event
                await asyncio.sleep(0.02)
        return seen

    async def time_change(self, order: Order, workers: int) -> float:
        """Return the seconds from the decision to the first step with this many workers."""
        known = len(self.read_ledger())
        decided_s = time.time()
        if isinstance(order, ResizeJob):
            self.resizes.append((decided_s, workers))
        await self.execute(order)
        async with asyncio.timeout(WAIT_S):
            while True:
                new = self.read_ledger()[known:]
                first = next((line for line in new if len(line.workers) == workers), None)
                if first is not None and first.time >= decided_s:
                    return first.time - decided_s
                await asyncio.sleep(0.02)

    async def wait_for_calm_steps(self) -> None:
        known = len(self.read_ledger())
        async with asyncio.timeout(WAIT_S):
            while len(self.read_ledger()) < known + CALM_STEPS:  # noqa: ASYNC110 - a line of a file is not an event
                await asyncio.sleep(0.02)

    def read_ledger(self) -> list[LedgerLine]:
        """Return all lines so far, but read only new ones: the training needs the cores."""
        self.lines += map(decode_ledger_line, self.tail.read_new_lines())
        return self.lines


async def measure_resizes(repetitions: int, home: Path) -> Results:
    timed = TimedJob(home)
    try:
        return await measure_job(timed, repetitions)
    finally:
        # A job outlives the process that has started it; this one must not.
        seen = (await timed.engine.observe([JOB]))[JOB]
        if seen.present:
            await timed.engine.carry_out([KillAttempt(job=JOB, attempt=seen.attempt)])
            await timed.wait_until(lambda seen: not seen.present)
        await timed.engine.close()


async def measure_job(timed: TimedJob, repetitions: int) -> Results:
    measured: dict[str, list[float]] = {"submit": [], "grow": [], "shrink": [], "pause": [], "resume": []}
    for attempt in range(1, 1 + max(1, repetitions // GROWTHS_PER_ATTEMPT)):
        start = StartAttempt(job=JOB, attempt=attempt, workers=1, spec=timed.spec)
        measured["submit" if attempt == 1 else "resume"].append(await timed.time_change(start, 1))
        # Before the fork server has imported everything, a growth would measure these imports.
        await timed.wait_until(lambda seen: seen.target == seen.workers == 1)
        for _ in range(GROWTHS_PER_ATTEMPT):
            await timed.wait_for_calm_steps()
            measured["grow"].append(await timed.time_change(make_resize(attempt, 2), 2))
            await timed.wait_for_calm_steps()
            measured["shrink"].append(await timed.time_change(make_resize(attempt, 1), 1))
        await timed.wait_for_calm_steps()
        decided_s = time.time()
        await timed.execute(StopAttempt(job=JOB, attempt=attempt))
        await timed.wait_until(lambda seen: not seen.present)
        measured["pause"].append(time.time() - decided_s)
    effects = [
        compute_effect(timed.read_ledger(), decided_s, workers) for decided_s, workers in timed.resizes
    ]
    await timed.execute(SettleJob(job=JOB))
    return {"seconds": {name: summarize(values) for name, values in measured.items()}} | describe_effects(
        effects
    )


class Effect(NamedTuple):
    """The effect of one resize on healthy workers; see above."""

    grown: bool
    slowest: float
    calm: float
    pause_s: float


def compute_effect(ledger: Sequence[LedgerLine], decided_s: float, workers: int) -> Effect:
    """Return the effect of a resize with `CALM_STEPS` undisturbed steps before and after it."""
    begin = next(n for n, line in enumerate(ledger) if line.time >= decided_s)
    first = next(n for n in range(begin, len(ledger)) if len(ledger[n].workers) == workers)
    took = [line.seconds["step"] for line in ledger]
    before = median(took[begin - CALM_STEPS : begin])
    after = median(took[first + 1 : first + 1 + CALM_STEPS])
    # As many steps as those of the change; fewer, if fewer came before it.
    calm = took[max(0, 2 * begin - first - 1) : begin]
    return Effect(
        grown=workers > len(ledger[begin - 1].workers),
        slowest=max(took[begin : first + 1]) / max(before, after),
        calm=max(calm) / before,
        pause_s=took[first] - after,
    )


def describe_effects(effects: Sequence[Effect]) -> Results:
    """Return the rows of growths and of shrinks."""
    rows: Results = {}
    for name, grown in (("grow", True), ("shrink", False)):
        some = [one for one in effects if one.grown == grown]
        rows[f"felt by the healthy, {name}"] = {
            "slowest step over a usual one": summarize([one.slowest for one in some]),
            "the same, calm": summarize([one.calm for one in some]),
            "pause_s": summarize([one.pause_s for one in some]),
        }
    return rows


def make_resize(attempt: int, workers: int) -> ResizeJob:
    return ResizeJob(job=JOB, attempt=attempt, workers=workers, limits=(1, 2))


async def measure_observation(home: Path) -> Spread:
    """Time one observation by an engine with many ended and many waiting jobs in its directory."""
    engine, places = LocalEngine(home), EngineDirectories(home)
    for number in range(SETTLED):
        run_dir = places.get_run_dir(f"settled-{number}")
        run_dir.logs.mkdir(parents=True)
        run_dir.presence.touch()
        attempt = Attempt(number=1, pid=1, started=1, began_s=0.0, outcome=AttemptOutcome(code=0))
        run_dir.attempt.write_bytes(msgspec.json.encode(attempt))
    jobs = [f"waiting-{number}" for number in range(WAITING)]
    took = []
    for _ in range(20):
        begun = time.perf_counter()
        await engine.observe(jobs)
        took.append(time.perf_counter() - begun)
    return summarize(took)


def summarize(values: list[float]) -> Spread:
    if len(values) < 2:
        return {"n": len(values), "p50": round(values[0], 4) if values else 0.0}
    parts = quantiles(values, n=100, method="inclusive")
    return {
        "n": len(values),
        "p50": round(parts[49], 4),
        "p95": round(parts[94], 4),
        "most": round(max(values), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=20, help="growths and shrinks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        os.environ["ELASTANE_HOME"] = str(home)
        results = asyncio.run(measure_resizes(options.repetitions, home))
        observation = asyncio.run(measure_observation(home))
    results["seconds"][f"one look: {SETTLED} settled and {WAITING} waiting jobs"] = observation
    print(json.dumps({"machine": machine.describe(), **results}, indent=2))


if __name__ == "__main__":
    main()
