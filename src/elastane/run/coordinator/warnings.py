"""Warnings that the coordinator writes once in each attempt of a run."""

import math
from dataclasses import replace
from pathlib import PurePath

from elastane.run.checkpoints.retention import read_metric
from elastane.run.coordinator.actions import WriteEvent
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.control import CheckpointKept
from elastane.run.nouns.records import EventLine

PATIENCE_S = 10.0
"""The time in which a script usually joins, after it has imported packages."""

UNJOINED = "unjoined"
"""The key of the event, which is written once per attempt of the run."""
NEVER_BEST = "never best"
"""The key of the event, which is written once per attempt of the run."""


def warn_of_unjoined(turn: Turn) -> None:
    """Warn once if workers have run for some time and none has called ``elastane.join()``."""
    roster = turn.roster
    if roster.reports or roster.joined or UNJOINED in roster.events.keys or not roster.started:
        return
    importing = any(report.importing for report in roster.nodes.reports.values())
    if importing or roster.troubles.unjoined_since is None:
        turn.roster = replace(roster, troubles=replace(roster.troubles, unjoined_since=turn.now))
        return
    if turn.now - roster.troubles.unjoined_since < PATIENCE_S:
        return
    script = roster.spec.module or PurePath(roster.spec.script).name
    why = (
        f"{script} has run for {PATIENCE_S:.0f} s since its imports and has not called elastane.join(). It "
        "may still be loading data. If it trains already, each worker does so by itself, and nothing is "
        "shared or recorded: write run = elastane.join(), run.prepare(model, optimizer), and loop over "
        "run.steps(...). "
        "A Trainer of elastane.integrations joins when it begins to train"
    )
    turn.roster = replace(roster, events=replace(roster.events, keys={**roster.events.keys, UNJOINED: None}))
    turn.actions.append(
        WriteEvent(EventLine(time=turn.wall_s, kind="warning", who="script", why=why, key=UNJOINED))
    )


# -- the warning about ``--keep-best`` with an unknown metric: the run would retain no best checkpoint ---


def warn_of_missing_metric(turn: Turn, kept: CheckpointKept) -> None:
    """Warn once if a checkpoint lacks the metric that chooses the best one."""
    policy = turn.roster.spec.checkpoints
    if policy is None or policy.keep_best is None or NEVER_BEST in turn.roster.events.keys:
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
        turn.roster, events=replace(turn.roster.events, keys={**turn.roster.events.keys, NEVER_BEST: None})
    )
    event = EventLine(
        time=turn.wall_s, kind="warning", who="coordinator", why=why, step=kept.step, key=NEVER_BEST
    )
    turn.actions.append(WriteEvent(event))
