"""What a join does to those already there: their slowest step during it, beside an onlooker's start."""

import sys
import time
from statistics import median
from typing import Any

import ticks
from elastane_run import ElastaneRun
from job import HERE, Job
from processes import Processes
from setting import Setting

VIRTUAL_RANKS = 4
AFTERWARDS_STEPS = 3


def measure(setting: Setting) -> dict[str, Any]:
    """Steps of the worker that was there before, in seconds and as multiples of its usual step."""
    job = Job(setting.size, 1_000_000, VIRTUAL_RANKS, setting.work / "join")
    joins: list[dict[str, float]] = []
    controls: list[dict[str, float]] = []
    with ElastaneRun(job, setting.work / "join-run", start=1, most=2) as run:
        run.wait_for_steps(setting.calm_steps)
        for _ in range(setting.repetitions):
            controls.append(control(run, setting))
            joins.append(join(run, setting))
            run.resize(1)
            run.wait_for_members(1)
    return {
        "join": joins,
        "control": controls,
        "join_slowest_over_usual": [each["slowest_over_usual"] for each in joins],
        "control_slowest_over_usual": [each["slowest_over_usual"] for each in controls],
        "join_s": [each["took_s"] for each in joins],
    }


def join(run: ElastaneRun, setting: Setting) -> dict[str, float]:
    """From the wish for a second worker until some steps after its first."""
    pid = next(iter(run.worker_pids().values()))
    run.wait_for_steps(setting.calm_steps)
    begin_s = time.monotonic()
    run.resize(2)
    joined_s = run.wait_for_members(2)
    run.wait_for_steps(AFTERWARDS_STEPS)
    return {"took_s": joined_s - begin_s, **disturbance(run, pid, begin_s, setting)}


def control(run: ElastaneRun, setting: Setting) -> dict[str, float]:
    """From the start of an onlooker until it has ended, and some steps."""
    pid = next(iter(run.worker_pids().values()))
    run.wait_for_steps(setting.calm_steps)
    begin_s = time.monotonic()
    with Processes(setting.work / f"onlooker-{begin_s:.0f}") as processes:
        processes.start([sys.executable, str(HERE / "onlooker.py"), setting.size])
        processes.finish(timeout_s=120)
    took_s = time.monotonic() - begin_s
    run.wait_for_steps(AFTERWARDS_STEPS)
    return {"took_s": took_s, **disturbance(run, pid, begin_s, setting)}


def disturbance(run: ElastaneRun, pid: int, begin_s: float, setting: Setting) -> dict[str, float]:
    """The slowest step of process ``pid`` since ``begin_s``, beside its usual one just before."""
    mine = ticks.of(pid, run.ticks())
    before = [tick for tick in mine if tick.at_s <= begin_s][-setting.calm_steps - 1 :]
    usual_s = median(ticks.durations_s(before).values())
    slowest_s = ticks.slowest_s(mine, begin_s, time.monotonic())
    return {"usual_s": usual_s, "slowest_s": slowest_s, "slowest_over_usual": slowest_s / usual_s}
