"""Measure the same changes under torchrun, which restarts every worker from the last snapshot."""

import os
import signal
import time
from itertools import pairwise
from statistics import median
from typing import Any

import ticks
from job import Job
from private_network import NoPrivateNetwork
from processes import wait_until
from setting import Setting
from torchrun import TorchrunRun

VIRTUAL_RANKS = 4


def measure(setting: Setting) -> dict[str, Any]:
    """Let a second agent join, then kill a worker.

    ``*_stall_s``: the longest time in which no step was finished for the first time. ``*_lost_steps``: steps
    that were done again.
    """
    found = []
    for repetition in range(setting.repetitions):
        out = setting.work / f"torchrun-{repetition}"
        try:
            run = TorchrunRun(Job(setting.size, 1_000_000, VIRTUAL_RANKS, out), out / "logs")
        except NoPrivateNetwork as refusal:
            return {"skipped": f"torchrun listens on every address, and {refusal}"}
        with run:
            found.append(measure_run(run, setting))
    return {"runs": found} | {key: [each[key] for each in found] for key in found[0]}


def measure_run(run: TorchrunRun, setting: Setting) -> dict[str, float]:
    run.start_agent()
    run.wait_for_step(setting.calm_steps + 5)
    usual_s = median(list(ticks.compute_durations_s(run.read_ticks()).values())[-setting.calm_steps :])
    join_s = time.monotonic()
    run.start_agent()
    wait_until(
        lambda: len({tick.pid for tick in run.read_ticks()}) == 3, "steps of two workers under torchrun"
    )
    run.wait_for_step(run.find_last_step() + setting.calm_steps)
    kill_s = time.monotonic()
    os.kill(run.find_newest_pids(2)[1], signal.SIGKILL)
    run.wait_for_step(run.find_last_step() + 3)
    end_s = time.monotonic()
    return {
        "usual_s": usual_s,
        "join_stall_s": find_longest_stall_s(run.read_ticks(), join_s, kill_s),
        "join_lost_steps": count_lost_steps(run.read_ticks(), join_s, kill_s),
        "death_stall_s": find_longest_stall_s(run.read_ticks(), kill_s, end_s),
        "death_lost_steps": count_lost_steps(run.read_ticks(), kill_s, end_s),
    }


def find_longest_stall_s(seen: list[ticks.Tick], begin_s: float, end_s: float) -> float:
    """Return the longest gap that ends in this time, between two steps finished for the first time."""
    first: dict[int, float] = {}
    for tick in seen:
        first.setdefault(tick.step, tick.at_s)
    gaps = pairwise(sorted(first.values()))
    return max(b - a for a, b in gaps if begin_s < b <= end_s)


def count_lost_steps(seen: list[ticks.Tick], begin_s: float, end_s: float) -> int:
    """Return how many steps the training went back."""
    furthest, lost = 0, 0
    for tick in seen:
        if begin_s < tick.at_s < end_s:
            lost = max(lost, furthest - tick.step + 1 if tick.step < furthest else 0)
        furthest = max(furthest, tick.step)
    return lost
