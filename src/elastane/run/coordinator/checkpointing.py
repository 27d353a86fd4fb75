"""Checkpoints of a run: when the coordinator requests one, which worker publishes it, and what failed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from elastane.run.coordinator.checkpoints import (
    CheckpointInProgress,
    Rewrite,
    compute_interval_s,
    divide_blocks,
)
from elastane.run.coordinator.deaths import format_worker_list
from elastane.run.coordinator.roster import Roster
from elastane.run.coordinator.turn import Turn
from elastane.run.coordinator.warnings import warn_of_missing_metric
from elastane.run.nouns.checkpoints import UNORDERED
from elastane.run.nouns.control import CheckpointKept, PublishCheckpoint, TakeCheckpoint, WriteAgain
from elastane.run.nouns.membership import WorkerId
from elastane.run.protocol.tree import find_spans

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
    written = next((begun for begun in turn.roster.begun_checkpoints if begun.name == kept.name), None)
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
    asked, parts = known.rewrite, checkpoint.parts
    if asked is None and checkpoint.attempt != UNORDERED and not parts.keys() >= set(checkpoint.writers):
        # The coordinator that ordered this attempt has gone, perhaps before each writer had its order.
        if blocks := _divide_last_state(turn):
            _order_rewrite(turn, blocks)
        return True
    if not checkpoint.unable:
        if asked is not None and not checkpoint.written and turn.now - asked.asked_s >= ASK_AGAIN_S:
            begun = parts if asked.attempt <= checkpoint.attempt else ()
            _repeat_rewrite(turn, asked, (worker for worker in asked.writers if worker not in begun))
        return False
    if checkpoint.step < roster.progress.step:
        return False
    blocks = _divide_last_state(turn, unable=checkpoint.unable)
    if not blocks:
        return _awaits_holders(roster)
    if not checkpoint.unable <= known.refusing:
        return bool(checkpoint.hopeless)  # a refusal may still pass
    if asked is not None and asked.attempt > checkpoint.attempt and asked.blocks == blocks:
        # No worker has begun yet.
        if turn.now - asked.asked_s >= ASK_AGAIN_S:
            _repeat_rewrite(turn, asked, asked.writers)
        return True
    why = (
        f"{checkpoint.name}: {format_worker_list(sorted(checkpoint.unable))} cannot write the last state, so "
    )
    why += f"{format_worker_list(sorted(blocks))} write" + ("s it" if len(blocks) == 1 else " it")
    turn.record("checkpoint.failing", who="coordinator", why=why, detail={"name": checkpoint.name})
    _order_rewrite(turn, blocks)
    return True


def _divide_last_state(
    turn: Turn, *, unable: frozenset[WorkerId] = frozenset()
) -> Mapping[WorkerId, tuple[int, ...]]:
    """Divide the blocks of the last state among the workers that can write them; see `divide_blocks`."""
    roster = turn.roster
    if roster.pinned is None:
        return {}
    held = tuple(
        (worker, report.last_blocks)
        for worker, report in sorted(roster.reports.items())
        if report.state == "finished" and report.step >= roster.progress.step
        if not roster.is_gone(worker) and worker not in roster.checkpoints.refusing | unable
    )
    return divide_blocks(held, roster.pinned.blocks)


def _awaits_holders(roster: Roster) -> bool:
    """Return whether blocks of the last state without an able worker may still turn up.

    A living worker may hold them of which this coordinator has not heard, or a member may still receive them
    from one that storage refuses: an unplanned generation goes on with that after the last step.
    """
    if any(worker not in roster.reports for worker in roster.list_living(roster.needed)):
        return True
    at_work = roster.at_work
    members = () if at_work is None else roster.list_living(at_work.workers)
    return any(
        not roster.reports[worker].complete
        or (at_work is not None and roster.reports[worker].generation < at_work.number)
        for worker in members
        if worker in roster.reports
    )


def _start_last_checkpoint(turn: Turn) -> None:
    """Order a write of the last state if all its writers died before they could report."""
    roster, asked = turn.roster, turn.roster.checkpoints.rewrite
    newest = find_newest_checkpoint(roster)
    if newest is not None and newest.step >= roster.progress.step:
        return
    blocks = _divide_last_state(turn)
    if not blocks:
        return
    if asked is None or asked.blocks != blocks:
        _order_rewrite(turn, blocks)
    elif turn.now - asked.asked_s >= ASK_AGAIN_S:
        _repeat_rewrite(turn, asked, asked.writers)


def _order_rewrite(turn: Turn, blocks: Mapping[WorkerId, tuple[int, ...]]) -> None:
    """Order a new attempt, with this division of the blocks."""
    roster = turn.roster
    asked = roster.checkpoints.rewrite
    number = 1 if asked is None else asked.attempt[1] + 1
    rewrite = Rewrite((roster.term.number, number), blocks, turn.now)
    _repeat_rewrite(turn, rewrite, rewrite.writers)


def _repeat_rewrite(turn: Turn, rewrite: Rewrite, workers: Iterable[WorkerId]) -> None:
    """Send these writers of an attempt their orders."""
    for worker in workers:
        blocks = find_spans(rewrite.blocks[worker])
        turn.send(worker, WriteAgain(writers=rewrite.writers, blocks=blocks, attempt=rewrite.attempt))
    known = replace(turn.roster.checkpoints, rewrite=replace(rewrite, asked_s=turn.now))
    turn.roster = replace(turn.roster, checkpoints=known)


def _publish_next(turn: Turn) -> None:
    """Publish the oldest written checkpoint; one that storage has refused does not delay later ones.

    An attempt that resumes from a checkpoint continues the ledger, so the lines up to its step come first.
    """
    roster = turn.roster
    written = [
        begun
        for begun in roster.begun_checkpoints
        if begun.written and not is_settled(roster, begun) and roster.progress.recorded >= begun.step
    ]
    if written:
        refused = {name for kind, name in roster.checkpoints.announced if kind == "checkpoint.failing"}
        _publish(turn, next((begun for begun in written if begun.name not in refused), written[-1]))


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
