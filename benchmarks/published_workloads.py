"""Run the workloads of Pollux (OSDI 2021) through `plan()`, and through Tiresias and Optimus.

Completion times are seconds from the submission of a job to its end. The folder is ``simulator`` of the
artifact: github.com/petuum/adaptdl, branch osdi21-artifact. Published means of workload 6, at 30 seconds a
resize: Tiresias 3,470, Optimus 5,302.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from pollux.applications import read_applications
from pollux.baselines import Optimus, Tiresias
from pollux.elastane_policy import Elastane, cut_batches
from pollux.simulation import Outcome, Policy, Submission, read_workload, simulate

KNOWLEDGE: dict[str, dict[str, bool]] = {
    "elastane": {"remaining": True},
    "without remaining": {"remaining": False},
    "without priors": {"remaining": True, "prior": False},
    "with true speeds": {"remaining": True, "oracle": True},
}
"""What Elastane knows beside what it measures. Usually the samples that a job still needs, because most jobs
say when they end, and the speeds of earlier jobs with the same script. The others show what that is worth."""

POLICIES = ("tiresias", "optimus", *KNOWLEDGE)

REPORTED = (1, 3, 5)
"""Workloads 2, 4 and 6 are those on which the scheduler's rules were tuned."""


class Row(NamedTuple):
    """The results of a policy, as means over workloads.

    Args:
        policy: its name.
        resize_s: seconds that a resize took.
        mean_s: mean completion time.
        median_s: median completion time.
        p99_s: completion time that one job in a hundred exceeds.
        makespan_s: from the beginning to the end of the last job.
        resizes: of a job.
        resizing: the share of all used device-seconds that went into resizes and starts.
        by_application: mean completion time of the jobs of each application.
        means_s: mean completion time in each workload.
    """

    policy: str
    resize_s: float
    mean_s: float
    median_s: float
    p99_s: float
    makespan_s: float
    resizes: float
    resizing: float
    by_application: dict[str, float]
    means_s: tuple[float, ...]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder simulator of the artifact")
    parser.add_argument("--workloads", type=int, nargs="+", default=REPORTED)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--resize-s", type=float, nargs="+", default=[30.0, 10.0, 1.0])
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    applications = read_applications(options.folder / "traces")
    workloads = [
        read_workload(options.folder / "workloads" / f"workload-{number}.csv", applications)
        for number in options.workloads
    ]
    for resize_s in options.resize_s:
        first = None
        for name in options.policies:
            row = measure(name, workloads, resize_s)
            first = first or row
            if options.json:
                print(json.dumps(row._asdict()), flush=True)
            else:
                print("\n".join(format_row(row, first)), flush=True)


def measure(name: str, workloads: list[list[Submission]], resize_s: float) -> Row:
    """Run the workloads, each by a policy of its own."""
    if name in KNOWLEDGE:
        workloads = [[*map(cut_batches, one)] for one in workloads]
    outcomes = [simulate(one, make_policy(name, resize_s), resize_s) for one in workloads]
    completions = [sorted(outcome.completions_s) for outcome in outcomes]
    return Row(
        policy=name,
        resize_s=resize_s,
        mean_s=mean(map(mean, completions)),
        median_s=mean(map(median, completions)),
        p99_s=mean(one[int(len(one) * 0.99)] for one in completions),
        makespan_s=mean(outcome.makespan_s for outcome in outcomes),
        resizes=mean(mean(job.resizes for job in outcome.jobs) for outcome in outcomes),
        resizing=mean(map(compute_resizing, outcomes)),
        by_application=group_completions(outcomes),
        means_s=tuple(map(mean, completions)),
    )


def make_policy(name: str, resize_s: float) -> Policy:
    match name:
        case "tiresias":
            return Tiresias()
        case "optimus":
            return Optimus()
        case _:
            return Elastane(resize_s, **KNOWLEDGE[name])


def compute_resizing(outcome: Outcome) -> float:
    return sum(job.resized_s for job in outcome.jobs) / sum(job.attained_s for job in outcome.jobs)


def group_completions(outcomes: list[Outcome]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for job, completion_s in zip(outcome.jobs, outcome.completions_s, strict=True):
            found[job.application.name].append(completion_s)
    return {name: mean(times) for name, times in sorted(found.items())}


def format_row(row: Row, first: Row) -> Iterator[str]:
    """Yield the lines of a row; the first row of a table brings the heading."""
    if row is first:
        yield f"\n{row.resize_s:g} seconds a resize"
        yield (
            f"{'policy':20}{'mean':>8}{'of first':>9}{'median':>8}{'p99':>8}{'makespan':>10}"
            f"{'resizes':>9}{'resizing':>9}  mean of {', '.join(row.by_application)}"
        )
    applications = " ".join(f"{mean_s:,.0f}" for mean_s in row.by_application.values())
    yield (
        f"{row.policy:20}{row.mean_s:>8,.0f}{row.mean_s / first.mean_s - 1:>+9.1%}{row.median_s:>8,.0f}"
        f"{row.p99_s:>8,.0f}{row.makespan_s:>10,.0f}{row.resizes:>9.2f}{row.resizing:>9.1%}  {applications}"
    )


if __name__ == "__main__":
    main()
