"""Measure the cost of ``kill -9`` of the coordinator, and of a process that only imports the same modules."""

import os
import signal
import sys
import time
from typing import Any

from elastane.run.nouns.control import AskStatus

from elastane_run import ElastaneRun
from job import Job
from join import measure_disturbance
from processes import Processes
from setting import Setting

VIRTUAL_RANKS = 4
AFTERWARDS_STEPS = 5
IMPORTS = "import elastane.run.coordinator.server"


def measure(setting: Setting) -> dict[str, Any]:
    """Return the slowest step around each death and around each control, and the time of the next resize."""
    job = Job(setting.size, 1_000_000, VIRTUAL_RANKS, setting.work / "coordinator")
    deaths, controls = [], []
    with ElastaneRun(job, setting.work / "coordinator-run", start=2, most=2) as run:
        for _ in range(setting.repetitions):
            run.wait_for_members(2)
            run.wait_for_steps(setting.calm_steps)
            controls.append(measure_control(run, setting))
            run.wait_for_steps(setting.calm_steps)
            deaths.append(measure_death(run, setting))
            run.resize(2)
    return {
        "deaths": deaths,
        "control": controls,
        "control_slowest_over_usual": [each["slowest_over_usual"] for each in controls],
        "slowest_over_usual": [each["slowest_over_usual"] for each in deaths],
        "successor_s": [each["successor_s"] for each in deaths],
        "resize_after_s": [each["resize_after_s"] for each in deaths],
    }


def measure_death(run: ElastaneRun, setting: Setting) -> dict[str, float]:
    status = run.ask(AskStatus())
    coordinator = next(process.pid for process in status.processes if process.role == "coordinator")
    begin_s = time.monotonic()
    os.kill(coordinator, signal.SIGKILL)
    run.wait(lambda: run.ask(AskStatus()).term > status.term, "the next coordinator")
    successor_s = time.monotonic() - begin_s
    run.wait_for_steps(AFTERWARDS_STEPS)
    pids = list(run.read_worker_pids().values())
    disturbance = measure_disturbance(run.read_ticks(), pids, begin_s, setting.calm_steps)
    asked_s = time.monotonic()
    run.resize(1)
    return {**disturbance, "successor_s": successor_s, "resize_after_s": run.wait_for_members(1) - asked_s}


def measure_control(run: ElastaneRun, setting: Setting) -> dict[str, float]:
    """Measure from the start of a process outside the run that imports what a coordinator imports."""
    begin_s = time.monotonic()
    with Processes(setting.work / f"bystander-{begin_s:.0f}") as processes:
        processes.start([sys.executable, "-P", "-c", IMPORTS])
        processes.finish(timeout_s=120)
    run.wait_for_steps(AFTERWARDS_STEPS)
    pids = list(run.read_worker_pids().values())
    return measure_disturbance(run.read_ticks(), pids, begin_s, setting.calm_steps)
