"""Measure the cost of a checkpoint to the training: Elastane, `dcp.save`, `dcp.async_save` and the floors.

A run saves its state at a fixed interval of steps. The cost of a checkpoint is the time that its steps take
beyond as many usual steps: once for the step in which it begins, and once including the following steps,
during which the state is written. The floors are a copy of the same bytes in memory, and the time that the
same training loses while an unrelated process writes them.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import ddp
import pausing
import ticks
from elastane_run import ElastaneRun, read_number
from job import HERE, Job
from processes import Processes
from setting import Setting
from train_saving_ddp import KINDS

VIRTUAL_RANKS = 2
TOUCHED_STEPS = 3
"""Steps after a checkpoint by which all writing is over, in this setting."""


def measure(setting: Setting) -> dict[str, Any]:
    """Return, by number of workers, the seconds that each checkpoint took, and the floors."""
    return {"size": setting.state} | {str(workers): measure_workers(setting, workers) for workers in (1, 2)}


def measure_workers(setting: Setting, workers: int) -> dict[str, Any]:
    ours = measure_elastane(setting, workers)
    theirs = measure_ddp(setting, workers, ours["bytes"])
    return {
        "bytes": ours["bytes"],
        "lost_s": {"elastane": ours["lost_s"], **theirs},
        "copy_s": ours["copy_s"],
        "write_s": ours["write_s"],
        "floors": measure_floors(setting, workers, ours["bytes"]),
    }


def measure_elastane(setting: Setting, workers: int) -> dict[str, Any]:
    out = setting.work / f"saving-elastane-{workers}"
    steps = pausing.count_steps(1, setting.repetitions)
    job = Job(setting.state, steps, VIRTUAL_RANKS, out)
    with ElastaneRun(
        job,
        out / "run",
        start=workers,
        most=workers,
        # The script alone decides when.
        checkpoints=f"{10 * steps} steps",
        script="saving_elastane",
    ) as run:
        run.finish_undisturbed()
    saved = run.read_events("checkpoint.saved")
    return {
        "lost_s": compute_costs(out, 0, 1, setting.repetitions),
        "bytes": int(read_number(saved[0], "bytes")),
        "copy_s": [read_number(event, "copy_s") for event in saved[1:-1]],
        "write_s": [read_number(event, "seconds") for event in saved[1:-1]],
    }


def measure_ddp(setting: Setting, workers: int, nbytes: int) -> dict[str, Any]:
    out = setting.work / f"saving-ddp-{workers}"
    job = Job(setting.state, pausing.count_steps(len(KINDS), setting.repetitions), VIRTUAL_RANKS, out)
    out.mkdir(parents=True)
    with Processes(out / "writers") as writers:
        for me in range(workers):
            writers.start(
                [sys.executable, str(HERE / "writer.py"), str(out), str(nbytes // workers), str(me)]
            )
        with Processes(out / "logs") as processes:
            ddp.start(processes, job, workers, "saving_ddp")
            processes.finish(timeout_s=900)
    return {
        kind: compute_costs(out, number, len(KINDS), setting.repetitions) for number, kind in enumerate(KINDS)
    }


def compute_costs(out: Path, kind: int, kinds: int, repetitions: int) -> dict[str, list[float]]:
    """Return the seconds that each checkpoint cost: in the step after it, and in all steps that it touched.

    Each step is compared with the median of the untouched steps around it.
    """
    took = ticks.compute_mean_durations_s(ticks.read_steps(out))
    first, whole, usual = [], [], []
    for event in pausing.list_begins(kind, kinds, repetitions):
        untouched_s = [
            took[step]
            for begin in (event - pausing.PERIOD_STEPS, event)
            for step in range(begin + TOUCHED_STEPS + 1, begin + pausing.PERIOD_STEPS + 1)
            if step in took
        ]
        usual_s = median(untouched_s)
        touched = [took[step] - usual_s for step in range(event + 1, event + TOUCHED_STEPS + 1)]
        first.append(touched[0])
        whole.append(sum(touched))
        usual.append(usual_s)
    return {"first_step": first, "all_steps": whole, "usual_step": usual}


def compute_lost_s(took: dict[int, float], event: int, touched: int) -> float:
    """Return the seconds that the steps after an event took beyond as many usual steps around them."""
    around = [*range(event - 2 * touched, event + 1), *range(event + touched + 1, event + 3 * touched)]
    usual_s = median(took[step] for step in around if step in took)
    return sum(took[step] - usual_s for step in range(event + 1, event + touched + 1) if step in took)


def measure_floors(setting: Setting, workers: int, nbytes: int) -> dict[str, list[float]]:
    """Return the seconds that a copy in memory takes when every worker copies its share at the same time."""
    asked = [str(HERE / "floor_copy.py"), str(nbytes // workers), str(setting.repetitions)]
    started = [
        subprocess.Popen([sys.executable, *asked], stdout=subprocess.PIPE, text=True) for _ in range(workers)
    ]
    found = [json.loads(process.communicate()[0]) for process in started]
    return {key: [max(times) for times in zip(*(one[key] for one in found), strict=True)] for key in found[0]}
