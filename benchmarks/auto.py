"""Measure the cost of checkpoints with ``auto``, which promises a hundredth of the time at most."""

from itertools import pairwise
from typing import Any

import ticks
from checkpoint_cost import compute_lost_s
from elastane_run import ElastaneRun, read_number
from job import Job
from setting import Setting

VIRTUAL_RANKS = 4
CHECKPOINTS = 2
TOUCHED_STEPS = 6
LONGEST_S = 300.0


def measure(setting: Setting) -> dict[str, Any]:
    """Train until there are this many checkpoints; return the seconds of each and of the time before it."""
    job = Job(setting.size, 1_000_000, VIRTUAL_RANKS, setting.work / "auto")
    with ElastaneRun(job, setting.work / "auto-run", start=2, most=2, checkpoints="auto") as run:
        run.wait_for_members(2)
        begin = run.read_ledger()[-1].time
        run.wait(
            lambda: len(run.read_events("checkpoint.saved")) >= CHECKPOINTS,
            "checkpoints",
            timeout_s=LONGEST_S,
        )
        run.wait_for_steps(TOUCHED_STEPS)
        saved = run.read_events("checkpoint.saved")[:CHECKPOINTS]
        took = ticks.compute_mean_durations_s(run.read_ticks())
    lost = [compute_lost_s(took, int(read_number(event, "step")), TOUCHED_STEPS) for event in saved]
    times = [begin, *(event.time for event in saved)]
    between = [after - before for before, after in pairwise(times)]
    return {
        "lost_s": lost,
        "between_s": between,
        "share": [lost_s / between_s for lost_s, between_s in zip(lost, between, strict=True)],
        "bytes": read_number(saved[0], "bytes"),
    }
