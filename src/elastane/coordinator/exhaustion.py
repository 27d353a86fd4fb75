"""Workers that run out of a resource: the run replaces them, but not for ever.

A replacement that meets the same limit changes nothing. After a number of such deaths close together the run
goes on with the living workers, and fails if there is none.
"""

from dataclasses import replace

from elastane.api.control import WorkerExit
from elastane.api.resources import RESOURCES
from elastane.coordinator.run_end import fail_run
from elastane.coordinator.turn import Turn

MOST_DEATHS = 5
WITHIN_S, WITHIN_STEPS = 60.0, 10
"""A death counts until it is both longer ago and more steps ago than this: steps may be fast or slow."""


def count_exhausted(turn: Turn, ended: WorkerExit) -> None:
    """Count a member that died of exhaustion; stop replacing such members if too many have died lately."""
    roster, resource = turn.roster, RESOURCES.get(ended.code)
    if resource is None or roster.stopping is not None or roster.finishing is not None:
        return
    lately = tuple(
        (time, step)
        for time, step in roster.troubles.exhausted
        if turn.now - time < WITHIN_S or roster.progress.step - step < WITHIN_STEPS
    )
    lately = (*lately, (turn.now, roster.progress.step))
    turn.roster = replace(roster, troubles=replace(roster.troubles, exhausted=lately))
    # All members at once may meet one limit of the machine; that alone does not say that the next ones will.
    if len(lately) < max(MOST_DEATHS, 2 * (roster.wanted.target or 1)):
        return
    story = (
        f"{len(lately)} workers ran out of {resource.name} one after the other; the last, worker "
        f"{ended.worker}, at step {roster.progress.step}, see logs/worker-{ended.worker}.log; {resource.do}"
    )
    present = roster.list_living(roster.newest.workers) if roster.newest is not None else ()
    if not present:
        fail_run(turn, story)
        return
    turn.roster = replace(turn.roster, troubles=replace(turn.roster.troubles, exhausted=()))
    turn.record("resize.requested", who="coordinator", why=f"{story}; going on with {len(present)}")
    turn.set_target(len(present), roster.wanted.draining)
