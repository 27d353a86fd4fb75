"""Measure the cost of ``kill -9`` of one of three workers in the middle of a step."""

import math
import os
import signal
import time
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import ticks
from elastane_run import ElastaneRun
from job import Job
from processes import wait_until
from setting import Setting

VIRTUAL_RANKS = 6
WORKERS = 3


@dataclass(frozen=True)
class Death:
    """One death.

    Args:
        pid: the process id of the dead worker.
        step: the step in which it died.
        at_s: the monotonic time of the kill.
    """

    pid: int
    step: int
    at_s: float


def measure(setting: Setting) -> dict[str, Any]:
    """Kill the newest worker again and again; the agent replaces it each time.

    ``to_commit_s``: from the kill to the commit of the interrupted step, on the later survivor. ``work_s``:
    the survivors' computation in that time, their own rest of the step and the missing virtual ranks, at the
    speed of two workers. ``beyond_work_s``: the difference, the time to notice, agree, assign again, reduce
    and apply.
    """
    job = Job(setting.size, 1_000_000, VIRTUAL_RANKS, setting.work / "death")
    deaths = []
    with ElastaneRun(job, setting.work / "death-run", start=WORKERS, most=WORKERS) as run:
        for _ in range(setting.repetitions):
            run.wait_for_members(WORKERS)
            run.wait_for_steps(setting.calm_steps)
            deaths.append(measure_death(run, setting, VIRTUAL_RANKS))
    keys = ("to_commit_s", "beyond_work_s", "usual_step_s", "noticed_s", "recomputed")
    return {"virtual_ranks": VIRTUAL_RANKS, "deaths": deaths} | {k: [d[k] for d in deaths] for k in keys}


def measure_death(run: ElastaneRun, setting: Setting, virtual_ranks: int) -> dict[str, float]:
    """Kill a process of the newest worker: the last one, if it has several."""
    *others, newest = run.read_all_pids().values()
    victim, survivors = newest[-1], [pid for pids in others for pid in pids]
    usual_s = median(
        list(ticks.compute_durations_s(ticks.select_process(victim, run.read_ticks())).values())[
            -setting.calm_steps :
        ]
    )
    events = len(run.read_events("worker.died"))
    last = ticks.select_process(victim, run.read_ticks())[-1]
    wait_until(
        lambda: ticks.select_process(victim, run.read_ticks())[-1].step > last.step,
        "the next step of the victim",
    )
    time.sleep(usual_s / 2)  # into the middle of its step
    wall_s, death = time.time(), kill_worker(victim, run)
    run.wait_for_steps(4)
    run.wait(lambda: len(run.read_events("worker.died")) > events, "the death in the events")
    commits = [tick for tick in run.read_ticks() if tick.step == death.step and tick.pid in survivors]
    to_commit_s = max(tick.at_s for tick in commits) - death.at_s
    each = math.ceil(virtual_ranks / len(survivors))
    work_s = max(compute_work_s(run, pid, death, each) for pid in survivors)
    return {
        "usual_step_s": usual_s,
        "to_commit_s": to_commit_s,
        "work_s": work_s,
        "beyond_work_s": to_commit_s - work_s,
        "noticed_s": run.read_events("worker.died")[events].time - wall_s,
        "recomputed": count_recomputed(run, death, virtual_ranks),
    }


def kill_worker(pid: int, run: ElastaneRun) -> Death:
    os.kill(pid, signal.SIGKILL)
    at_s = time.monotonic()
    mine = [
        tick for tick in ticks.select_process(pid, ticks.read_microbatches(run.job.out)) if tick.at_s <= at_s
    ]
    return Death(pid, mine[-1].step, at_s)


def compute_work_s(run: ElastaneRun, pid: int, death: Death, each: int) -> float:
    """Return the seconds that survivor ``pid`` still computed for the step after the death.

    Its speed is that of the survivors' next whole steps: they have the cores of the dead worker, too. The
    part of a microbatch that it had computed at the death is reckoned at the speed of before.

    Args:
        each: the microbatches of each survivor in these steps.
    """
    ahead = [
        tick
        for tick in ticks.select_process(pid, run.read_ticks())
        if death.step <= tick.step <= death.step + 3
    ]
    pace_s = median(ticks.compute_durations_s(ahead).values()) / each
    microbatches = ticks.select_process(pid, ticks.read_microbatches(run.job.out))
    mine = [one for one in microbatches if one.step == death.step]
    later = sum(one.at_s > death.at_s for one in mine)
    begun = [one.at_s for one in mine if one.at_s <= death.at_s]
    if not begun:
        return later * pace_s
    before = [
        one for one in microbatches if death.step - 3 <= one.step <= death.step and one.at_s <= death.at_s
    ]
    pace_before_s = median(b.at_s - a.at_s for a, b in pairwise(before) if a.step == b.step)
    under_way = max(0.0, 1 - (death.at_s - begun[-1]) / pace_before_s)
    return (later + under_way) * pace_s


def count_recomputed(run: ElastaneRun, death: Death, virtual_ranks: int) -> int:
    """Return the microbatches of that step begun beyond V: those that the survivors computed again."""
    begun = sum(m.step == death.step for m in ticks.read_microbatches(run.job.out))
    return begun - virtual_ranks
