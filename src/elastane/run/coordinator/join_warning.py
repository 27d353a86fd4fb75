"""The warning about a script that does not join: it would train to its end, and then the run would fail."""

from dataclasses import replace
from pathlib import PurePath

from elastane.run.coordinator.actions import WriteEvent
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.records import EventLine

PATIENCE_S = 10.0
"""The time in which a script usually joins, after importing packages and reading data."""

KEY = "unjoined"
"""The key of the event, which is written once per attempt of the run."""


def warn_of_unjoined(turn: Turn) -> None:
    """Warn once if workers have run for some time and none has called ``elastane.join()``."""
    roster = turn.roster
    if roster.reports or roster.joined or KEY in roster.events.keys or not roster.started:
        return
    if roster.troubles.unjoined_since is None:
        turn.roster = replace(roster, troubles=replace(roster.troubles, unjoined_since=turn.now))
        return
    if turn.now - roster.troubles.unjoined_since < PATIENCE_S:
        return
    script = roster.spec.module or PurePath(roster.spec.script).name
    why = (
        f"{script} has run for {PATIENCE_S:.0f} s and has not called elastane.join(). It may still be "
        "importing or loading. If it trains already, each worker does so by itself, and nothing is shared or "
        "recorded: write run = elastane.join(), run.prepare(model, optimizer), and loop over run.steps(...)"
    )
    turn.roster = replace(roster, events=replace(roster.events, keys={**roster.events.keys, KEY: None}))
    turn.actions.append(
        WriteEvent(EventLine(time=turn.wall_s, kind="warning", who="script", why=why, key=KEY))
    )
