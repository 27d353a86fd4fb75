"""Retention: the choice of the checkpoints of a run to delete."""

import math
from collections.abc import Iterable, Mapping, Sequence

from elastane.run.nouns.checkpoints import EVALUATION, CheckpointSummary, Deletion, Retention


def choose_deletions(summaries: Iterable[CheckpointSummary], rules: Retention) -> tuple[Deletion, ...]:
    """Return the checkpoints to delete, oldest first, each with its reason.

    It never chooses the newest complete one, the best one, or the one with which the present attempt of the
    run began. It never chooses one that is newer than the newest complete one, because another worker may be
    writing it, and never one with a schema that this version does not know.

    Raises:
        ValueError: a rule retains fewer than one checkpoint.
    """
    if min(rules.last or 1, rules.every or 1) < 1 or rules.last == 0 or rules.every == 0:
        raise ValueError("a retention rule must retain at least one checkpoint")
    ordered = sorted(summaries, key=lambda summary: summary.age)
    complete = [summary for summary in ordered if summary.state == "complete"]
    if not complete:
        return ()
    newest, retained = complete[-1], {summary.name for summary in _select_retained(complete, rules)}
    deletions = []
    for summary in ordered:
        if summary.age >= newest.age or summary.name in retained or summary.name == rules.origin:
            continue
        match summary.state:
            case "complete":
                deletions.append(Deletion(summary.name, f"not {_describe_rules(rules)}"))
            case "unfinished":
                deletions.append(Deletion(summary.name, f"is unfinished, and {newest.name} is newer"))
            case "damaged":
                deletions.append(Deletion(summary.name, f"is damaged, and {newest.name} is newer and intact"))
            case "foreign":
                continue
    return tuple(deletions)


def find_best(complete: Sequence[CheckpointSummary], rules: Retention) -> CheckpointSummary | None:
    """Return the best by the metric of the rules, the newest among equals; None: none has the metric."""
    if rules.best is None:
        return None
    metric, direction = rules.best
    sign = 1 if direction == "max" else -1
    measured = [s for s in complete if math.isfinite(read_metric(s.metrics, metric))]
    return max(measured, key=lambda s: (sign * read_metric(s.metrics, metric), s.age), default=None)


def read_metric(metrics: Mapping[str, float], metric: str) -> float:
    """Return the metric of that name, else an evaluation's total; not a number if neither exists."""
    return metrics.get(metric, metrics.get(EVALUATION + metric, math.nan))


def _select_retained(complete: Sequence[CheckpointSummary], rules: Retention) -> list[CheckpointSummary]:
    if (rules.last, rules.every, rules.best) == (None, None, None):
        return list(complete)
    retained = list(complete[-(rules.last or 1) :])
    if rules.every is not None:
        retained += [summary for summary in complete if summary.step % rules.every == 0]
    best = find_best(complete, rules)
    return [*retained, best] if best is not None else retained


def _describe_rules(rules: Retention) -> str:
    words = [f"among the last {rules.last or 1}"]
    if rules.every is not None:
        words.append(f"at a multiple of {rules.every} steps")
    if rules.best is not None:
        words.append(f"the best by {rules.best[0]}")
    return ", nor ".join(words)
