"""What ``kill -9`` of the coordinator costs a run: nothing, if steps need no control plane."""

import os
import signal
import time
from statistics import median
from typing import Any

from elastane.api.control import AskStatus

import ticks
from elastane_run import ElastaneRun
from job import Job
from setting import Setting

VIRTUAL_RANKS = 4
AFTERWARDS_STEPS = 5


def measure(setting: Setting) -> dict[str, Any]:
    """The slowest step around the death beside the usual one, and whether the next resize works."""
    job = Job(setting.size, 1_000_000, VIRTUAL_RANKS, setting.work / "coordinator")
    deaths = []
    with ElastaneRun(job, setting.work / "coordinator-run", start=2, most=2) as run:
        for _ in range(setting.repetitions):
            run.wait_for_members(2)
            run.wait_for_steps(setting.calm_steps)
            deaths.append(death(run, setting))
            run.resize(2)
    return {
        "deaths": deaths,
        "slowest_over_usual": [each["slowest_over_usual"] for each in deaths],
        "successor_s": [each["successor_s"] for each in deaths],
        "resize_after_s": [each["resize_after_s"] for each in deaths],
    }


def death(run: ElastaneRun, setting: Setting) -> dict[str, float]:
    status = run.ask(AskStatus())
    coordinator = next(process.pid for process in status.processes if process.role == "coordinator")
    begin_s = time.monotonic()
    os.kill(coordinator, signal.SIGKILL)
    run.wait(lambda: run.ask(AskStatus()).term > status.term, "the next coordinator")
    successor_s = time.monotonic() - begin_s
    run.wait_for_steps(AFTERWARDS_STEPS)
    end_s = time.monotonic()
    slowest_s, usual_s = 0.0, 0.0
    for pid in run.worker_pids().values():
        mine = ticks.of(pid, run.ticks())
        before = [tick for tick in mine if tick.at_s <= begin_s][-setting.calm_steps - 1 :]
        usual_s = max(usual_s, median(ticks.durations_s(before).values()))
        slowest_s = max(slowest_s, ticks.slowest_s(mine, begin_s, end_s))
    asked_s = time.monotonic()
    run.resize(1)
    return {
        "usual_s": usual_s,
        "slowest_s": slowest_s,
        "slowest_over_usual": slowest_s / usual_s,
        "successor_s": successor_s,
        "resize_after_s": run.wait_for_members(1) - asked_s,
    }
