"""Measure the slowest step of the present workers during a join, and during a bystander's start."""

import sys
import time
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import ticks
from elastane_run import ElastaneRun
from job import HERE, Job
from processes import Processes
from setting import Setting

AFTERWARDS_STEPS = 3


@dataclass(frozen=True)
class Case:
    """A join.

    Args:
        size: the size of the model; None: that of the setting.
        before: the number of workers before the join.
        virtual_ranks: a number that gives even shares before and after the join.
        repetitions: the largest number of repetitions.
        calm_steps: the largest number of undisturbed steps.
    """

    size: str | None
    before: int
    virtual_ranks: int
    repetitions: int = 5
    calm_steps: int = 10


CASES = (Case(None, 1, 4), Case(None, 2, 6), Case("100m", 1, 2, repetitions=3, calm_steps=5))


def measure(setting: Setting) -> dict[str, Any]:
    """Return the steps of the present workers, in seconds and as multiples of their usual step."""
    found = {}
    for case in CASES:
        if case.size is None or setting.state == case.size:
            size = case.size or setting.size
            found[f"{size}, {case.before} to {case.before + 1}"] = measure_case(case, size, setting)
    return {"cases": found}


def measure_case(case: Case, size: str, setting: Setting) -> dict[str, Any]:
    calm = replace(setting, size=size, calm_steps=min(case.calm_steps, setting.calm_steps))
    name = f"join-{size}-{case.before}"
    job = Job(size, 1_000_000, case.virtual_ranks, setting.work / name)
    joins: list[dict[str, float]] = []
    controls: list[dict[str, float]] = []
    with ElastaneRun(job, setting.work / f"{name}-run", start=case.before, most=case.before + 1) as run:
        run.wait_for_members(case.before)
        run.wait_for_steps(calm.calm_steps)
        for _ in range(min(case.repetitions, setting.repetitions)):
            controls.append(measure_control(run, calm))
            joins.append(measure_join(run, calm, case.before + 1))
            run.resize(case.before)
            run.wait_for_members(case.before)
    return {
        "join": joins,
        "control": controls,
        "join_slowest_over_usual": [each["slowest_over_usual"] for each in joins],
        "control_slowest_over_usual": [each["slowest_over_usual"] for each in controls],
        "join_s": [each["took_s"] for each in joins],
    }


def measure_join(run: ElastaneRun, setting: Setting, workers: int) -> dict[str, float]:
    """Measure from the request for one more worker until some steps after its first one."""
    pids = list(run.read_worker_pids().values())
    run.wait_for_steps(setting.calm_steps)
    begin_s = time.monotonic()
    run.resize(workers)
    joined_s = run.wait_for_members(workers)
    run.wait_for_steps(AFTERWARDS_STEPS)
    return {
        "took_s": joined_s - begin_s,
        **measure_disturbance(run.read_ticks(), pids, begin_s, setting.calm_steps),
    }


def measure_control(run: ElastaneRun, setting: Setting) -> dict[str, float]:
    """Measure from the start of a bystander until some steps after its end."""
    pids = list(run.read_worker_pids().values())
    run.wait_for_steps(setting.calm_steps)
    begin_s = time.monotonic()
    with Processes(setting.work / f"bystander-{begin_s:.0f}") as processes:
        processes.start([sys.executable, str(HERE / "bystander.py"), setting.size])
        processes.finish(timeout_s=120)
    took_s = time.monotonic() - begin_s
    run.wait_for_steps(AFTERWARDS_STEPS)
    disturbance = measure_disturbance(run.read_ticks(), pids, begin_s, setting.calm_steps)
    return {"took_s": took_s, **disturbance}


def measure_disturbance(
    seen: list[ticks.Tick], pids: list[int], begin_s: float, calm_steps: int
) -> dict[str, float]:
    """Return the slowest step of these processes since ``begin_s``, and their usual step just before."""
    end_s = time.monotonic()
    slowest_s, usual_s = 0.0, 0.0
    for pid in pids:
        mine = ticks.select_process(pid, seen)
        before = [tick for tick in mine if tick.at_s <= begin_s][-calm_steps - 1 :]
        usual_s = max(usual_s, median(ticks.compute_durations_s(before).values()))
        slowest_s = max(slowest_s, ticks.find_slowest_s(mine, begin_s, end_s))
    return {"usual_s": usual_s, "slowest_s": slowest_s, "slowest_over_usual": slowest_s / usual_s}
