"""Measure the cost of a planned leave to the other workers: time, and work done twice."""

import time
from statistics import median
from typing import Any

import ticks
from elastane_run import ElastaneRun
from job import Job
from setting import Setting

VIRTUAL_RANKS = 4


def measure(setting: Setting) -> dict[str, Any]:
    """Drain one worker of two, again and again.

    ``pause_s`` is how much longer the other worker's slowest step around the leave took than its usual step
    afterwards, when it computes everything alone. ``to_gone_s`` is the time from the request to the first
    step without the leaver.
    """
    job = Job(setting.size, 1_000_000, VIRTUAL_RANKS, setting.work / "leave")
    leaves = []
    with ElastaneRun(job, setting.work / "leave-run", start=2, most=2) as run:
        run.wait_for_members(2)
        for _ in range(setting.repetitions):
            run.wait_for_steps(setting.calm_steps)
            leaves.append(measure_leave(run, setting))
            run.resize(2)
            run.wait_for_members(2)
    return {
        "leave": leaves,
        "pause_s": [each["pause_s"] for each in leaves],
        "pause_over_usual": [each["pause_s"] / each["usual_s"] for each in leaves],
        "recomputed_virtual_ranks": [each["recomputed"] for each in leaves],
    }


def measure_leave(run: ElastaneRun, setting: Setting) -> dict[str, float]:
    pids = run.read_worker_pids()
    stayer, leaver = min(pids), max(pids)
    known = len(run.read_ledger())
    begin_s = time.monotonic()
    run.drain(leaver)
    gone_s = run.wait_for_members(1)
    run.wait_for_steps(setting.calm_steps)
    around = ticks.compute_durations_s(
        [tick for tick in ticks.select_process(pids[stayer], run.read_ticks()) if tick.at_s > begin_s]
    )
    # The last step of two workers, the first of one, and the next; later steps are usual again.
    alone = next(line.step for line in run.read_ledger()[known:] if len(line.workers) == 1)
    usual_s = median(seconds for step, seconds in around.items() if step > alone + 1)
    slowest_s = max(seconds for step, seconds in around.items() if step <= alone + 1)
    return {
        "to_gone_s": gone_s - begin_s,
        "usual_s": usual_s,
        "pause_s": max(0.0, slowest_s - usual_s),
        "recomputed": count_recomputed(run, known, len(run.read_ledger())),
    }


def count_recomputed(run: ElastaneRun, after: int, until: int) -> int:
    """Return the microbatches that all workers began beyond the V that each of these steps needs."""
    begun = [tick.step for tick in ticks.read_microbatches(run.job.out) if after < tick.step <= until]
    return len(begun) - run.job.virtual_ranks * (until - after)
