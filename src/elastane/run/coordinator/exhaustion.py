"""Workers that exhaust a resource: the run replaces them, but not forever.

A replacement that reaches the same limit does not help. After a number of such deaths within a short time the
run continues with the living workers, and fails without any.
"""

from dataclasses import replace

from elastane.run.coordinator.run_end import fail_run
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.control import WorkerExit
from elastane.run.nouns.resources import RESOURCES

MOST_DEATHS = 5
WITHIN_S, WITHIN_STEPS = 60.0, 10
"""A death counts until both this time and this number of steps have passed: steps may be fast or slow."""


def count_exhausted(turn: Turn, ended: WorkerExit) -> None:
    """Count a member that died of exhaustion; stop replacing such members after too many recent deaths."""
    roster, resource = turn.roster, RESOURCES.get(ended.code)
    if resource is None or roster.stopping is not None or roster.finishing is not None:
        return
    recent = tuple(
        (time, step)
        for time, step in roster.troubles.exhausted
        if turn.now - time < WITHIN_S or roster.progress.step - step < WITHIN_STEPS
    )
    recent = (*recent, (turn.now, roster.progress.step))
    turn.roster = replace(roster, troubles=replace(roster.troubles, exhausted=recent))
    # All members may reach one limit of the machine at once; that does not show that later ones will too.
    if len(recent) < max(MOST_DEATHS, 2 * (roster.wanted.target or 1)):
        return
    story = (
        f"{len(recent)} workers ran out of {resource.name} one after the other; the last, worker "
        f"{ended.worker}, at step {roster.progress.step}, see logs/worker-{ended.worker}.log; {resource.do}"
    )
    present = roster.list_living(roster.newest.workers) if roster.newest is not None else ()
    if not present:
        fail_run(turn, story)
        return
    turn.roster = replace(turn.roster, troubles=replace(turn.roster.troubles, exhausted=()))
    turn.record("resize.requested", who="coordinator", why=f"{story}; the run continues with {len(present)}")
    turn.set_target(len(present), roster.wanted.draining)
