"""Keeps the state: asks for checkpoints, has them published, says what became of them."""

import math
from dataclasses import replace

from elastane.api.control import CheckpointKept, PublishCheckpoint, TakeCheckpoint
from elastane.api.membership import WorkerId
from elastane.coordinator.checkpoints import InFlight, in_flight, interval_s
from elastane.coordinator.roster import Roster
from elastane.coordinator.turn import Turn

ASK_AGAIN_S = 2.0
PUBLISH_AGAIN_S = 5.0
LAST_ONE_S = 60.0
"""How long the end of a run waits for its last checkpoint."""


def keep_state(turn: Turn) -> None:
    """All that follows from the reports about checkpoints, and from the time."""
    if turn.roster.spec.checkpoints is None:
        return
    for checkpoint in all_in_flight(turn.roster):
        if not is_settled(turn.roster, checkpoint):
            _say_what_hinders(turn, checkpoint)
    _publish_the_next(turn)
    _ask_when_due(turn)


def all_in_flight(roster: Roster) -> tuple[InFlight, ...]:
    reported = {worker: report.checkpoints for worker, report in roster.reports.items()}
    gone = frozenset(worker for worker in reported if roster.gone(worker))
    return in_flight(reported, gone)


def newest_of(roster: Roster) -> InFlight | None:
    return next(reversed(all_in_flight(roster)), None)


def is_settled(roster: Roster, checkpoint: InFlight) -> bool:
    """It exists, or was given up and everybody told, or a later one exists."""
    keeping = roster.keeping
    return (
        checkpoint.name in keeping.kept
        or checkpoint.step < keeping.step
        or ("checkpoint.abandoned", checkpoint.name) in keeping.told
    )


def last_one_is_settled(turn: Turn, since: float) -> bool:
    """The checkpoint of a run's end exists or never will; nobody need wait for it any more."""
    roster = turn.roster
    if roster.spec.checkpoints is None:
        return True
    newest = newest_of(roster)
    if newest is not None and newest.step >= roster.step and is_settled(roster, newest):
        return True
    if turn.now - since < LAST_ONE_S:
        return False
    name = "the last checkpoint" if newest is None else newest.name
    refused = newest.refused if newest is not None else ""
    _tell_once(turn, "checkpoint.abandoned", name, refused or f"not written after {LAST_ONE_S:.0f} s")
    return True


def ask_now(turn: Turn) -> None:
    turn.roster = replace(turn.roster, keeping=replace(turn.roster.keeping, due=turn.now))


def want_one(turn: Turn) -> None:
    """A user wants the state as it is now, or a little later; one already under way may be too early."""
    keeping = turn.roster.keeping
    turn.roster = replace(turn.roster, keeping=replace(keeping, wanted=turn.roster.step, due=turn.now))


def hear_kept(turn: Turn, kept: CheckpointKept) -> None:
    """A checkpoint exists, or its publisher could not make it so and will be asked again."""
    keeping = turn.roster.keeping
    if kept.name in keeping.kept:
        return
    if kept.error:
        _tell_once(turn, "checkpoint.failing", kept.name, f"{kept.error}; it is tried again")
        return
    mine = next((some for some in all_in_flight(turn.roster) if some.name == kept.name), None)
    cost_s = mine.cost_s if mine is not None else keeping.cost_s
    detail: dict[str, float | int | str] = {"name": kept.name, "step": kept.step, "bytes": kept.bytes}
    why = f"{kept.name}, {kept.bytes / 1e6:,.1f} MB"
    if mine is not None and mine.parts:
        parts = mine.parts.values()
        copy_s, write_s = max(part.copy_s for part in parts), max(part.write_s for part in parts)
        detail |= {"copy_s": round(copy_s, 6), "seconds": round(write_s, 6), "writers": len(mine.writers)}
        why += f", copied in {1000 * copy_s:.1f} ms, written in {write_s:.2f} s"
    turn.record("checkpoint.saved", who=f"worker {kept.worker}", why=why, detail=detail)
    turn.roster = replace(
        turn.roster,
        keeping=replace(
            keeping,
            kept=keeping.kept | {kept.name},
            step=max(keeping.step, kept.step),
            publishing=None,
            cost_s=cost_s,
            due=turn.now + (0.0 if kept.step < keeping.wanted else _interval_s(turn, cost_s)),
        ),
    )


def _interval_s(turn: Turn, cost_s: float) -> float:
    roster = turn.roster
    policy = roster.spec.checkpoints
    if policy is None:
        return math.inf
    deaths = sum(kind in {"worker.died", "worker.hung"} for kind, _ in roster.noted)
    return interval_s(policy, cost_s, turn.now - roster.began, deaths)


def _say_what_hinders(turn: Turn, checkpoint: InFlight) -> None:
    """Ask for another one in place of one that will never be whole."""
    if checkpoint.hopeless:
        _tell_once(turn, "checkpoint.abandoned", checkpoint.name, checkpoint.hopeless)
        if turn.roster.finishing is None:
            ask_now(turn)
    elif checkpoint.refused:
        why = f"{checkpoint.refused}; training goes on, and it is tried again"
        _tell_once(turn, "checkpoint.failing", checkpoint.name, why)


def _publish_the_next(turn: Turn) -> None:
    """The oldest that is written; one that storage has refused does not keep back those after it.

    A life that begins with a checkpoint goes on with the ledger, so the lines up to its step come first.
    """
    roster = turn.roster
    written = [
        some
        for some in all_in_flight(roster)
        if some.written and not is_settled(roster, some) and roster.recorded >= some.step
    ]
    if written:
        refused = {name for kind, name in roster.keeping.told if kind == "checkpoint.failing"}
        _publish(turn, next((some for some in written if some.name not in refused), written[-1]))


def _publish(turn: Turn, whole: InFlight) -> None:
    roster, keeping = turn.roster, turn.roster.keeping
    asked = keeping.publishing
    if asked is not None and asked[0] == whole.name:
        if turn.now - asked[2] < PUBLISH_AGAIN_S and not roster.gone(asked[1]):
            return
    else:
        asked = None
    able = [worker for worker in (*whole.writers, *roster.started) if _may_publish(roster, worker)]
    if not able:
        return
    # The next one, where the last has failed.
    number = able.index(asked[1]) + 1 if asked is not None and asked[1] in able else 0
    worker = able[number % len(able)]
    turn.tell(worker, PublishCheckpoint(name=whole.name, step=whole.step, writers=whole.writers))
    turn.roster = replace(roster, keeping=replace(keeping, publishing=(whole.name, worker, turn.now)))


def _may_publish(roster: Roster, worker: WorkerId) -> bool:
    return worker in roster.joined and worker in roster.connected and not roster.gone(worker)


def _tell_once(turn: Turn, kind: str, name: str, why: str) -> None:
    keeping = turn.roster.keeping
    if (kind, name) in keeping.told:
        return
    turn.record(kind, who="coordinator", why=f"{name}: {why}", detail={"name": name})
    turn.roster = replace(turn.roster, keeping=replace(keeping, told=keeping.told | {(kind, name)}))


def _ask_when_due(turn: Turn) -> None:
    roster, keeping = turn.roster, turn.roster.keeping
    at_work = roster.at_work
    if roster.finishing is not None or roster.stopping is not None or at_work is None or roster.step == 0:
        return
    newest = newest_of(roster)
    step = keeping.step if newest is None else max(keeping.step, newest.step)
    if keeping.asked is not None:
        after, asked_at = keeping.asked
        if step > after:
            turn.roster = replace(roster, keeping=replace(keeping, asked=None))
            return
        if turn.now - asked_at < ASK_AGAIN_S:
            return
    elif turn.now < keeping.due or (newest is not None and not is_settled(roster, newest)):
        # Never two at once.
        return
    else:
        after = step
    for worker in sorted(roster.living(at_work.workers)):
        turn.tell(worker, TakeCheckpoint(after=after))
    turn.roster = replace(roster, keeping=replace(keeping, asked=(after, turn.now), due=math.inf))
