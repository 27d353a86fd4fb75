"""The metrics of one step, as rows that every tracker takes, made of the records of a run."""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.observability.evaluations import read_evaluation_means

LOSS = "train/loss"
"""The metric that every step has."""
RESERVED = ("train", "evaluation")
"""The beginnings of our names. A script's own value of such a name would be a file where MLflow needs a
folder."""
LONGEST_NAME = 200


class MetricRow(msgspec.Struct, frozen=True):
    """Metrics of a step.

    Args:
        step: the step, from 1; 0: before the first one.
        time: in Unix seconds.
        values: by name; a value that was not finite is NaN or infinite.
    """

    step: int
    time: float
    values: Mapping[str, float]


def make_step_row(line: LedgerLine) -> MetricRow:
    """Return the metrics in a line of the ledger.

    Raises:
        ValueError: the exact loss is not a number.
    """
    values = {LOSS: float.fromhex(line.loss_hex), "train/workers": float(len(line.workers))}
    rates = line.learning_rates
    names = (
        ["train/learning_rate"]
        if len(rates) == 1
        else [f"train/learning_rate-{i}" for i in range(len(rates))]
    )
    values |= dict(zip(names, rates, strict=True))
    if line.grad_norm is not None:
        values["train/grad_norm"] = line.grad_norm
    if (step_s := line.seconds.get("step", 0.0)) > 0:
        values["train/samples_per_s"] = line.samples.count / step_s
    for name, value in line.logged.items():
        if _is_usable(name):
            shown = f"logged/{name}" if name in RESERVED else name
            # The ledger does not tell one value that was not finite from another.
            values[shown] = value if value is not None and math.isfinite(value) else math.nan
    return MetricRow(line.step, line.time, values)


def make_evaluation_row(event: EventLine, place: int) -> MetricRow:
    """Return the means of an evaluation.

    Args:
        place: its place among the evaluations after the same step, from 1.
    """
    prefix = "evaluation" if place == 1 else f"evaluation-{place}"
    means = read_evaluation_means(event)
    values = {
        f"{prefix}/{name}": math.nan if mean is None else mean
        for name, mean in means.items()
        if _is_usable(name)
    }
    return MetricRow(event.step or 0, event.time, values)


def merge_rows(rows: Iterable[MetricRow]) -> list[MetricRow]:
    """Return one row for each step, in the order of the steps; the first value of a name counts."""
    merged: dict[int, MetricRow] = {}
    for row in rows:
        known = merged.get(row.step)
        values = row.values if known is None else {**row.values, **known.values}
        merged[row.step] = MetricRow(row.step, row.time if known is None else known.time, values)
    return [merged[step] for step in sorted(merged)]


def select_missing(
    rows: Sequence[MetricRow], recorded: Mapping[str, int]
) -> tuple[list[MetricRow], dict[str, int]]:
    """Return what a tracker does not have yet, and what it will have then.

    Args:
        recorded: the last step of each name that the tracker has.
    """
    missing, will_have = [], dict(recorded)
    for row in rows:
        values = {name: value for name, value in row.values.items() if row.step > will_have.get(name, -1)}
        if values:
            missing.append(MetricRow(row.step, row.time, values))
            will_have.update(dict.fromkeys(values, row.step))
    return missing, will_have


def _is_usable(name: str) -> bool:
    """Return whether a script can have given this name; a damaged file may hold any text, such as a path."""
    return name.isidentifier() and len(name) <= LONGEST_NAME
