"""Measure a step while nothing happens: Elastane, the plain loop and DDP, in turns."""

from collections.abc import Callable
from statistics import median
from typing import Any

import ddp
import ticks
from elastane_run import ElastaneRun
from job import Job
from setting import Setting, Usual

VIRTUAL_RANKS = 4


def measure(setting: Setting) -> dict[str, Any]:
    """Return seconds per step, by size and contestant: one median for each repetition."""
    return {size: measure_size(setting, size, usual) for size, usual in setting.usual.items()}


def measure_size(setting: Setting, size: str, usual: Usual) -> dict[str, Any]:
    contestants: dict[str, Callable[[Job], None]] = {
        "plain_1": lambda job: ddp.run(job, 1, job.out / "logs"),
        "tree_1": lambda job: ddp.run(job, 1, job.out / "logs", script="tree"),
        "elastane_1": lambda job: run_elastane(job, 1),
        "ddp_2": lambda job: ddp.run(job, 2, job.out / "logs"),
        "elastane_2": lambda job: run_elastane(job, 2),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for repetition in range(setting.repetitions):
        # In turns, so that other load on the machine affects all alike.
        for name, contestant in contestants.items():
            out = setting.work / f"usual-{size}-{name}-{repetition}"
            job = Job(size, usual.warmup + usual.steps, VIRTUAL_RANKS, out)
            contestant(job)
            seconds[name].append(compute_step_s(job, usual))
    return {
        "warmup_steps": usual.warmup,
        "steps": usual.steps,
        "virtual_ranks": VIRTUAL_RANKS,
        "step_s": seconds,
        "tree_1_over_plain_1": compute_ratios(seconds["tree_1"], seconds["plain_1"]),
        "elastane_1_over_tree_1": compute_ratios(seconds["elastane_1"], seconds["tree_1"]),
        "elastane_1_over_plain_1": compute_ratios(seconds["elastane_1"], seconds["plain_1"]),
        "elastane_2_over_ddp_2": compute_ratios(seconds["elastane_2"], seconds["ddp_2"]),
    }


def run_elastane(job: Job, workers: int) -> None:
    with ElastaneRun(job, job.out / "logs", start=workers, most=workers) as run:
        run.finish_undisturbed()


def compute_step_s(job: Job, usual: Usual) -> float:
    """Return the median step of the slowest worker, in seconds, after the warm-up."""
    seen = ticks.read_steps(job.out)
    return max(
        median(
            s
            for step, s in ticks.compute_durations_s(ticks.select_process(pid, seen)).items()
            if step > usual.warmup
        )
        for pid in {tick.pid for tick in seen}
    )


def compute_ratios(ours: list[float], theirs: list[float]) -> list[float]:
    """Return one ratio for each repetition; its two halves ran one after the other."""
    return [our / their for our, their in zip(ours, theirs, strict=True)]
