"""Checkpoints of a run: when the coordinator requests one, which worker publishes it, and what failed."""

import math
from collections.abc import Iterable
from dataclasses import replace

from elastane.api.control import CheckpointKept, PublishCheckpoint, TakeCheckpoint, WriteAgain
from elastane.api.membership import WorkerId
from elastane.coordinator.checkpoints import CheckpointInProgress, compute_interval_s
from elastane.coordinator.deaths import format_worker_list
from elastane.coordinator.metric_warning import warn_of_missing_metric
from elastane.coordinator.roster import Roster
from elastane.coordinator.turn import Turn

ASK_AGAIN_S = 2.0
PUBLISH_AGAIN_S = 5.0
PATIENCE_S = 3.0
"""How long storage may refuse a part before another worker writes it."""

LAST_CHECKPOINT_S = 60.0
"""How long the end of a run waits for its last checkpoint."""


def advance_checkpoints(turn: Turn) -> None:
    """Request, publish, rewrite or abandon checkpoints, as reports and time require."""
    if turn.roster.spec.checkpoints is None:
        return
    for checkpoint in turn.roster.begun_checkpoints:
        if not is_settled(turn.roster, checkpoint):
            _handle_obstacles(turn, checkpoint)
    if turn.roster.finishing is not None:
        _start_last_checkpoint(turn)
    _publish_next(turn)
    _request_when_due(turn)


def find_newest_checkpoint(roster: Roster) -> CheckpointInProgress | None:
    return next(reversed(roster.begun_checkpoints), None)


def is_settled(roster: Roster, checkpoint: CheckpointInProgress) -> bool:
    """Return whether this or a later checkpoint exists, or this one is abandoned."""
    known = roster.checkpoints
    return (
        checkpoint.name in known.existing
        or checkpoint.step < known.step
        or ("checkpoint.abandoned", checkpoint.name) in known.announced
    )


def reopen_last_checkpoint(turn: Turn) -> None:
    """Forget that the last checkpoint was abandoned: the state is final, so other workers may write it."""
    roster, known = turn.roster, turn.roster.checkpoints
    newest = find_newest_checkpoint(roster)
    if newest is not None and newest.step >= roster.progress.step:
        announced = known.announced - {("checkpoint.abandoned", newest.name)}
        turn.roster = replace(roster, checkpoints=replace(known, announced=announced))


def is_last_checkpoint_settled(turn: Turn, since: float) -> bool:
    """Return whether the run may end: its last checkpoint exists, or never will."""
    roster = turn.roster
    if roster.spec.checkpoints is None:
        return True
    newest = find_newest_checkpoint(roster)
    if newest is not None and newest.step >= roster.progress.step and is_settled(roster, newest):
        return True
    if turn.now - since < LAST_CHECKPOINT_S:
        return False
    name = "the last checkpoint" if newest is None else newest.name
    refused = newest.refused if newest is not None else ""
    _record_once(
        turn, "checkpoint.abandoned", name, refused or f"not written after {LAST_CHECKPOINT_S:.0f} s"
    )
    return True


def make_checkpoint_due(turn: Turn) -> None:
    turn.roster = replace(turn.roster, checkpoints=replace(turn.roster.checkpoints, due=turn.now))


def request_checkpoint(turn: Turn) -> None:
    """Request a checkpoint of the present step or a later one; one in progress may be too early."""
    known = turn.roster.checkpoints
    turn.roster = replace(
        turn.roster, checkpoints=replace(known, wanted_after=turn.roster.progress.step, due=turn.now)
    )


def receive_checkpoint_kept(turn: Turn, kept: CheckpointKept) -> None:
    """Record that a checkpoint exists, or that its publisher failed; then the coordinator asks again."""
    known = turn.roster.checkpoints
    if kept.name in known.existing:
        return
    if kept.error:
        _record_once(turn, "checkpoint.failing", kept.name, f"{kept.error}; the run tries again")
        return
    written = next((one for one in turn.roster.begun_checkpoints if one.name == kept.name), None)
    cost_s = written.cost_s if written is not None else known.cost_s
    detail: dict[str, float | int | str] = {"name": kept.name, "step": kept.step, "bytes": kept.bytes}
    why = f"{kept.name}, {kept.bytes / 1e6:,.1f} MB"
    if written is not None and written.parts:
        parts = written.parts.values()
        copy_s, write_s = max(part.copy_s for part in parts), max(part.write_s for part in parts)
        detail |= {"copy_s": round(copy_s, 6), "seconds": round(write_s, 6), "writers": len(written.writers)}
        why += f", copied in {1000 * copy_s:.1f} ms, written in {write_s:.2f} s"
    turn.record("checkpoint.saved", who=f"worker {kept.worker}", why=why, detail=detail)
    warn_of_missing_metric(turn, kept)
    turn.roster = replace(
        turn.roster,
        checkpoints=replace(
            known,
            existing=known.existing | {kept.name},
            step=max(known.step, kept.step),
            publishing=None,
            cost_s=cost_s,
            failing={},
            refusing=frozenset(),
            due=turn.now + (0.0 if kept.step < known.wanted_after else _choose_interval_s(turn, cost_s)),
        ),
    )


def _choose_interval_s(turn: Turn, cost_s: float) -> float:
    roster = turn.roster
    policy = roster.spec.checkpoints
    if policy is None:
        return math.inf
    deaths = sum(kind in {"worker.died", "worker.hung"} for kind, _ in roster.events.of_workers)
    return compute_interval_s(policy, cost_s, turn.now - roster.term.began, deaths)


def _handle_obstacles(turn: Turn, checkpoint: CheckpointInProgress) -> None:
    """Have other workers write the part that one cannot, or replace a checkpoint that cannot be completed."""
    finishing = turn.roster.finishing is not None
    _record_refusals(turn, checkpoint)
    if finishing and _order_rewrite_if_possible(turn, checkpoint):
        return
    if checkpoint.hopeless:
        _record_once(turn, "checkpoint.abandoned", checkpoint.name, checkpoint.hopeless)
        if not finishing:
            make_checkpoint_due(turn)
    elif checkpoint.refused:
        why = f"{checkpoint.refused}; training continues, and the run tries again"
        _record_once(turn, "checkpoint.failing", checkpoint.name, why)
        if not finishing and _is_overdue(turn, checkpoint) and _list_able_workers(turn):
            # A worker that storage has refused reports it in its votes; the others copy the next checkpoint.
            unable = format_worker_list(sorted(checkpoint.unable))
            why = f"{unable} cannot write it; other workers write the next one"
            _record_once(turn, "checkpoint.abandoned", checkpoint.name, why)
            make_checkpoint_due(turn)


def _record_refusals(turn: Turn, checkpoint: CheckpointInProgress) -> None:
    """Remember workers that cannot write: storage refuses them, or, at the end of the run, they are gone."""
    roster, known, name = turn.roster, turn.roster.checkpoints, checkpoint.name
    failing = {other: since for other, since in known.failing.items() if other != name}
    refusing = known.refusing
    if checkpoint.unable:
        failing[name] = known.failing.get(name, turn.now)
        if turn.now - failing[name] >= PATIENCE_S:
            # By now storage has also refused the other workers that share it.
            refusing |= checkpoint.unable
        elif roster.finishing is not None and checkpoint.step >= roster.progress.step:
            refusing |= checkpoint.unable_for_good
    if failing != known.failing or refusing != known.refusing:
        turn.roster = replace(roster, checkpoints=replace(known, failing=failing, refusing=refusing))


def _is_overdue(turn: Turn, checkpoint: CheckpointInProgress) -> bool:
    return turn.now - turn.roster.checkpoints.failing.get(checkpoint.name, turn.now) >= PATIENCE_S


def _list_able_workers(turn: Turn) -> tuple[WorkerId, ...]:
    """Return the living members that storage has not refused recently."""
    roster = turn.roster
    members = () if roster.at_work is None else roster.list_living(roster.at_work.workers)
    return tuple(worker for worker in members if worker not in roster.checkpoints.refusing)


def _order_rewrite_if_possible(turn: Turn, checkpoint: CheckpointInProgress) -> bool:
    """Have able workers write the last state again; return False if none needs to or none can."""
    roster, known = turn.roster, turn.roster.checkpoints
    asked = known.rewrite
    if asked is None and checkpoint.attempt and not checkpoint.parts.keys() >= set(checkpoint.writers):
        # The coordinator that ordered this attempt has gone, perhaps before each writer had its order.
        able = _list_able_workers(turn)
        if able and _agree_on_holders(turn, able):
            _order_rewrite(turn, able, 1 + checkpoint.attempt, able)
        return True
    if not checkpoint.unable:
        if asked is not None and turn.now - asked[2] >= ASK_AGAIN_S:
            _order_rewrite(turn, (w for w in asked[1] if w not in checkpoint.parts), asked[0], asked[1])
        return False
    able = tuple(worker for worker in _list_able_workers(turn) if worker not in checkpoint.unable)
    # With a single copy no other worker has the missing blocks.
    if not able or checkpoint.step < roster.progress.step or roster.spec.copies == 1:
        return False
    if not checkpoint.unable <= known.refusing:
        return bool(checkpoint.hopeless)  # a refusal may still pass
    if not _agree_on_holders(turn, able):
        return True  # the coordinator asks once they agree
    if asked is not None and asked[0] > checkpoint.attempt and asked[1] == able:
        # No worker has begun yet.
        if turn.now - asked[2] >= ASK_AGAIN_S:
            _order_rewrite(turn, able, asked[0], able)
        return True
    attempt = 1 + max(checkpoint.attempt, 0 if asked is None else asked[0])
    why = (
        f"{checkpoint.name}: {format_worker_list(sorted(checkpoint.unable))} cannot write the last state, so "
    )
    why += f"{format_worker_list(able)} write" + ("s it" if len(able) == 1 else " it")
    turn.record("checkpoint.failing", who="coordinator", why=why, detail={"name": checkpoint.name})
    _order_rewrite(turn, able, attempt, able)
    return True


def _agree_on_holders(turn: Turn, workers: Iterable[WorkerId]) -> bool:
    """Return whether these workers divide the blocks among writers in the same way.

    If each block has few holders, a worker takes the holders from the generation in which it works. The last
    generation may have been proposed just before the end of the run: its members get some time to enter it.
    """
    roster = turn.roster
    ended_s = 0.0 if roster.finishing is None else turn.now - roster.finishing
    if roster.spec.copies is None or ended_s >= PATIENCE_S:
        return True
    reports = [roster.reports.get(worker) for worker in workers]
    generations = {
        report.generation if report is not None and report.complete else None for report in reports
    }
    return len(generations) == 1 and None not in generations


def _start_last_checkpoint(turn: Turn) -> None:
    """Order a write of the last state if all its writers died before they could report."""
    roster, asked, able = turn.roster, turn.roster.checkpoints.rewrite, _list_able_workers(turn)
    newest = find_newest_checkpoint(roster)
    if (newest is not None and newest.step >= roster.progress.step) or not able or roster.spec.copies == 1:
        return
    if not _agree_on_holders(turn, able):
        return
    if asked is None or asked[1] != able:
        _order_rewrite(turn, able, 1 + (0 if asked is None else asked[0]), able)
    elif turn.now - asked[2] >= ASK_AGAIN_S:
        _order_rewrite(turn, able, asked[0], able)


def _order_rewrite(
    turn: Turn, workers: Iterable[WorkerId], attempt: int, writers: tuple[WorkerId, ...]
) -> None:
    for worker in workers:
        turn.send(worker, WriteAgain(writers=writers, attempt=attempt))
    known = replace(turn.roster.checkpoints, rewrite=(attempt, writers, turn.now))
    turn.roster = replace(turn.roster, checkpoints=known)


def _publish_next(turn: Turn) -> None:
    """Publish the oldest written checkpoint; one that storage has refused does not delay later ones.

    An attempt that resumes from a checkpoint continues the ledger, so the lines up to its step come first.
    """
    roster = turn.roster
    written = [
        one
        for one in roster.begun_checkpoints
        if one.written and not is_settled(roster, one) and roster.progress.recorded >= one.step
    ]
    if written:
        refused = {name for kind, name in roster.checkpoints.announced if kind == "checkpoint.failing"}
        _publish(turn, next((one for one in written if one.name not in refused), written[-1]))


def _publish(turn: Turn, whole: CheckpointInProgress) -> None:
    roster, known = turn.roster, turn.roster.checkpoints
    asked = known.publishing
    if asked is not None and asked[0] == whole.name:
        if turn.now - asked[2] < PUBLISH_AGAIN_S and not roster.is_gone(asked[1]):
            return
    else:
        asked = None
    able = [worker for worker in (*whole.writers, *roster.started) if _may_publish(roster, worker)]
    if not able:
        return
    # Ask the next worker if the last one has failed.
    number = able.index(asked[1]) + 1 if asked is not None and asked[1] in able else 0
    worker = able[number % len(able)]
    turn.send(worker, PublishCheckpoint(name=whole.name, step=whole.step, writers=whole.writers))
    turn.roster = replace(roster, checkpoints=replace(known, publishing=(whole.name, worker, turn.now)))


def _may_publish(roster: Roster, worker: WorkerId) -> bool:
    return worker in roster.joined and worker in roster.connected and not roster.is_gone(worker)


def _record_once(turn: Turn, kind: str, name: str, why: str) -> None:
    known = turn.roster.checkpoints
    if (kind, name) in known.announced:
        return
    turn.record(kind, who="coordinator", why=f"{name}: {why}", detail={"name": name})
    turn.roster = replace(turn.roster, checkpoints=replace(known, announced=known.announced | {(kind, name)}))


def _request_when_due(turn: Turn) -> None:
    roster, known = turn.roster, turn.roster.checkpoints
    at_work = roster.at_work
    if (
        roster.finishing is not None
        or roster.stopping is not None
        or at_work is None
        or roster.progress.step == 0
    ):
        return
    newest = find_newest_checkpoint(roster)
    step = known.step if newest is None else max(known.step, newest.step)
    if known.request is not None:
        after, asked_at = known.request
        if step > after:
            turn.roster = replace(roster, checkpoints=replace(known, request=None))
            return
        if turn.now - asked_at < ASK_AGAIN_S:
            return
    elif turn.now < known.due or (newest is not None and not is_settled(roster, newest)):
        # Only one checkpoint is in progress at a time.
        return
    else:
        after = step
    for worker in sorted(roster.list_living(at_work.workers)):
        turn.send(worker, TakeCheckpoint(after=after))
    turn.roster = replace(roster, checkpoints=replace(known, request=(after, turn.now), due=math.inf))
