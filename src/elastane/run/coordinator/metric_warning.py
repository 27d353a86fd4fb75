"""The warning about ``--keep-best`` with an unknown metric: the run would retain no best checkpoint."""

import math
from dataclasses import replace

from elastane.run.checkpoints.retention import read_metric
from elastane.run.coordinator.actions import WriteEvent
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.control import CheckpointKept
from elastane.run.nouns.records import EventLine

KEY = "never best"
"""The key of the event, which is written once per attempt of the run."""


def warn_of_missing_metric(turn: Turn, kept: CheckpointKept) -> None:
    """Warn once if a checkpoint lacks the metric that chooses the best one."""
    policy = turn.roster.spec.checkpoints
    if policy is None or policy.keep_best is None or KEY in turn.roster.events.keys:
        return
    metric = policy.keep_best[0]
    if math.isfinite(read_metric(kept.metrics, metric)):
        return
    why = (
        f"{kept.name} cannot be the best checkpoint: it has no {metric}, by which --keep-best chooses. "
        f"It has {', '.join(sorted(kept.metrics)) or 'no figures'}. Choose by one of those, or write "
        f"run.checkpoint({metric}=...)"
    )
    turn.roster = replace(
        turn.roster, events=replace(turn.roster.events, keys={**turn.roster.events.keys, KEY: None})
    )
    event = EventLine(time=turn.wall_s, kind="warning", who="coordinator", why=why, step=kept.step, key=KEY)
    turn.actions.append(WriteEvent(event))
