"""What happens next in a run under the contract of torchrun. Pure; `elastane.run.scripts` acts on it.

Two rules hold in every history. A world starts only after `WorldGone` or `ServerLost` has confirmed that no
process of the one before is left, so there are never two processes of rank 0. And every stop has a deadline,
so a process that waits for a dead one is never waited for.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from elastane.run.nouns.control import AskDrain, AskEvict, AskResize, AskStop
from elastane.run.nouns.membership import WorkerId
from elastane.run.scripts.worlds.exits import describe_rank_end, is_death, name_rank
from elastane.run.scripts.worlds.messages import (
    AnnounceStop,
    EndRun,
    KillWorld,
    OutputSeen,
    RankExited,
    RecordChange,
    ServerLost,
    ServerReady,
    StartWorld,
    WorldAction,
    WorldGone,
    WorldInput,
    WorldRequest,
)
from elastane.run.scripts.worlds.state import (
    LocalRank,
    Over,
    RankFailure,
    Running,
    StopCause,
    Stopping,
    Waiting,
    World,
    WorldRules,
)

DEATH_GRACE_S = 3.0
"""The longest time that the survivors of a death may take to end: their collectives cannot complete."""
QUICK_S = 10.0
"""A world that was killed within this time has probably made no progress."""
MOST_QUICK_DEATHS = 10
LONGEST_DELAY_S = 30.0
FIRST_DELAYED = 3
KILLED, TERMINATED = -int(signal.SIGKILL), -int(signal.SIGTERM)


@dataclass(slots=True)
class _Turn:
    """The working state of one call of `advance`."""

    world: World
    now_s: float
    actions: list[WorldAction] = field(default_factory=list)

    def update(self, **changes: object) -> None:
        self.world = replace(self.world, **changes)  # type: ignore[arg-type]

    def record(
        self,
        kind: str,
        *,
        who: str = "agent",
        why: str = "",
        workers: Sequence[WorkerId] = (),
        detail: Mapping[str, float] | None = None,
    ) -> None:
        self.actions.append(RecordChange(kind, who, why, tuple(workers), detail or {}))


def advance(
    world: World, inputs: Iterable[WorldInput], now_s: float
) -> tuple[World, tuple[WorldAction, ...]]:
    """Return the world after some inputs, and the actions to carry out in order.

    Args:
        world: the present one.
        inputs: in the order of their arrival; empty if only time has passed.
        now_s: monotonic clock.
    """
    turn = _Turn(world, now_s)
    for event in inputs:
        if isinstance(turn.world.phase, Over):
            break
        _receive(turn, event)
    if not isinstance(turn.world.phase, Over):
        _settle(turn)
    return turn.world, tuple(turn.actions)


def find_next_time(world: World) -> float | None:
    """Return the monotonic time at which `advance` must be called even without inputs; None: never."""
    match world.phase:
        case Stopping(deadline_s=deadline_s, killed=False):
            return deadline_s
        case Waiting(not_before_s=not_before_s) if world.ready:
            return not_before_s
        case Running() as phase:
            return _find_next_check(phase, world.rules)
        case _:
            return None


def _find_next_check(phase: Running, rules: WorldRules) -> float | None:
    due = [] if rules.stall_s is None else [phase.heard_s + rules.stall_s]
    if phase.finishing_s is not None and not phase.reported:
        due.append(phase.finishing_s + rules.grace_s)
    return min(due, default=None)


def choose_workers(world: World) -> tuple[tuple[WorkerId, ...], WorkerId]:
    """Return the workers that the next world should have, and the number of the next new worker.

    The oldest worker stays first, so it keeps rank 0. The newest workers leave first.
    """
    staying = tuple(worker for worker in world.workers if worker not in world.leaving)[: world.target]
    missing = world.target - len(staying)
    new = tuple(range(world.next_worker, world.next_worker + missing))
    return staying + new, world.next_worker + missing


def list_finished(world: World) -> tuple[LocalRank, ...]:
    """Return the processes of a training world that have ended with exit code 0, in the order of ranks."""
    if not isinstance(world.phase, Running):
        return ()
    return tuple(rank for rank in world.ranks if rank not in world.phase.living)


# -- inputs ------------------------------------------------------------------------------------------------


def _receive(turn: _Turn, received: WorldInput) -> None:
    match received:
        case ServerReady():
            turn.update(ready=True)
        case ServerLost():
            _lose_server(turn)
        case RankExited():
            if received.generation == turn.world.generation:
                _end_rank(turn, received.rank, received.code)
        case OutputSeen(generation=generation):
            if generation == turn.world.generation and isinstance(turn.world.phase, Running):
                turn.update(phase=replace(turn.world.phase, heard_s=turn.now_s))
        case WorldGone(generation=generation):
            if generation == turn.world.generation:
                _leave_world(turn)
        case AskResize() | AskDrain() | AskStop() | AskEvict():
            _receive_request(turn, received)
        case _:
            assert_never(received)


def _receive_request(turn: _Turn, request: WorldRequest) -> None:
    match request:
        case AskResize(workers=workers, limits=limits):
            _resize(turn, workers, by_hand=limits is None)
        case AskDrain(worker=worker):
            _drain(turn, worker)
        case AskStop():
            _request_stop(turn, request)
        case AskEvict():
            _settle(turn)
            if isinstance(turn.world.phase, Running) and _is_change_wanted(turn.world):
                _stop_world(turn, "resize", "the number of workers must change at once", grace_s=0.0)
            if isinstance(turn.world.phase, Stopping):
                turn.update(phase=replace(turn.world.phase, deadline_s=turn.now_s))
        case _:
            assert_never(request)


def _lose_server(turn: _Turn) -> None:
    turn.update(ready=False)
    if isinstance(turn.world.phase, Waiting):
        return
    turn.record("warning", why="the fork server died, and with it every process of the run")
    if isinstance(turn.world.phase, Running):
        _stop_world(turn, "death", "the fork server died", grace_s=0.0)
    _leave_world(turn)


def _end_rank(turn: _Turn, rank: LocalRank, code: int) -> None:
    phase = turn.world.phase
    if not isinstance(phase, Running | Stopping) or rank not in phase.living:
        return
    phase = replace(phase, living=phase.living - {rank})
    if code == 0 and isinstance(phase, Running) and phase.finishing_s is None:
        phase = replace(phase, finishing_s=turn.now_s)
    turn.update(phase=phase)
    if code == 0:
        return
    if isinstance(phase, Stopping):
        _end_rank_of_stopping_world(turn, phase, rank, code)
        return
    source = name_rank(rank, turn.world.rules.processes)
    if is_death(code):
        turn.record("worker.died", who=source, why=describe_rank_end(code), workers=(rank.worker,))
        _stop_world(turn, "death", f"{source} died: {describe_rank_end(code)}", grace_s=DEATH_GRACE_S)
        return
    failure = RankFailure(turn.world.generation, rank, code)
    turn.record("worker.failed", who=source, why=describe_rank_end(code), workers=(rank.worker,))
    turn.update(failures=turn.world.failures + 1, failure=failure)
    _stop_world(turn, "failure", f"{source} failed: {describe_rank_end(code)}", grace_s=DEATH_GRACE_S)


def _end_rank_of_stopping_world(turn: _Turn, phase: Stopping, rank: LocalRank, code: int) -> None:
    """Find the reason of a failure among processes that end later, and set an earlier deadline if one died.

    The connections of a killed process close before it has ended. So a process that fails because of that may
    end before the killed one.
    """
    if phase.killed or code >= 0 or code == TERMINATED:
        return
    source = name_rank(rank, turn.world.rules.processes)
    if code == KILLED:
        turn.record("worker.died", who=source, why=describe_rank_end(code), workers=(rank.worker,))
        deadline_s = min(phase.deadline_s, turn.now_s + DEATH_GRACE_S)
        if phase.cause == "failure":
            turn.update(failures=turn.world.failures - 1, failure=None)
            phase = replace(phase, cause="death", why=f"{source} died: {describe_rank_end(code)}")
        turn.update(phase=replace(phase, deadline_s=deadline_s))
    elif phase.cause == "failure":
        turn.record("worker.failed", who=source, why=describe_rank_end(code), workers=(rank.worker,))
        turn.update(
            failure=RankFailure(turn.world.generation, rank, code),
            phase=replace(phase, why=f"{source} failed: {describe_rank_end(code)}"),
        )


def _resize(turn: _Turn, workers: int, *, by_hand: bool) -> None:
    world = turn.world
    if workers != world.target:
        who = "user" if by_hand else "controller"
        turn.record("resize.requested", who=who, why=f"from {world.target} to {workers} workers")
    turn.update(target=workers, by_hand=by_hand)


def _drain(turn: _Turn, worker: WorkerId) -> None:
    world = turn.world
    if worker in world.leaving or worker not in world.workers:
        return
    turn.record("drain.requested", who="user", why=f"worker {worker} must leave", workers=(worker,))
    turn.update(target=max(1, world.target - 1), leaving=world.leaving | {worker}, by_hand=True)


def _request_stop(turn: _Turn, request: AskStop) -> None:
    if turn.world.stop_why:
        return
    why = "stopped by request" + (f": {request.why.removesuffix('.')}" if request.why else "")
    turn.record("stop.requested", who=request.who, why="the run ends; its processes may save before")
    turn.update(stop_why=why, stop_who=request.who)


# -- transitions -------------------------------------------------------------------------------------------


def _settle(turn: _Turn) -> None:
    """Make every transition that is due."""
    phase = turn.world.phase
    if isinstance(phase, Running):
        _report_late_end(turn, phase)
        _change_running_world(turn)
        _end_stalled_world(turn)
    elif isinstance(phase, Waiting):
        if turn.world.stop_why:
            _end(turn, Over("run.stopped", turn.world.stop_why))
        elif turn.world.ready and turn.now_s >= phase.not_before_s:
            _start_world(turn)
    phase = turn.world.phase
    if isinstance(phase, Stopping) and not phase.killed and turn.now_s >= phase.deadline_s:
        if phase.living:
            late = sorted(phase.living)
            turn.record(
                "warning",
                why=f"{len(late)} of {len(turn.world.ranks)} processes did not end within "
                f"{phase.deadline_s - phase.began_s:.1f} s and were killed",
                workers=sorted({rank.worker for rank in late}),
            )
        turn.actions.append(KillWorld())
        turn.update(phase=replace(phase, killed=True))


def _change_running_world(turn: _Turn) -> None:
    world = turn.world
    if world.stop_why:
        _stop_world(turn, "stop", world.stop_why)
    elif _is_change_wanted(world) and not list_finished(world):
        # A world of which a process has finished is about to end: a restart would only repeat its end.
        new = len(choose_workers(world)[0])
        _stop_world(turn, "resize", f"from {len(world.workers)} to {new} workers")


def _end_stalled_world(turn: _Turn) -> None:
    """Treat a world of which no process has printed anything for too long as a failure of the script."""
    phase, stall_s = turn.world.phase, turn.world.rules.stall_s
    if not isinstance(phase, Running) or stall_s is None or turn.now_s < phase.heard_s + stall_s:
        return
    why = f"no process has printed anything for {stall_s:g} s (--stall-timeout)"
    turn.record("worker.hung", why=why, workers=sorted({rank.worker for rank in phase.living}))
    turn.update(failures=turn.world.failures + 1, failure=None)
    _stop_world(turn, "failure", why, grace_s=DEATH_GRACE_S)


def _report_late_end(turn: _Turn, phase: Running) -> None:
    """Warn once about processes that do not end long after others have; they may be saving, or hang."""
    grace_s = turn.world.rules.grace_s
    if phase.finishing_s is None or phase.reported or turn.now_s < phase.finishing_s + grace_s:
        return
    late = [name_rank(rank, turn.world.rules.processes) for rank in sorted(phase.living)]
    turn.record(
        "warning",
        why=f"{'; '.join(late)}: not ended {grace_s:g} s after another process ended with exit code 0; if it "
        "hangs, end the run with `elastane stop`",
        workers=sorted({rank.worker for rank in phase.living}),
    )
    turn.update(phase=replace(phase, reported=True))


def _is_change_wanted(world: World) -> bool:
    return choose_workers(world)[0] != world.workers


def _start_world(turn: _Turn) -> None:
    world = turn.world
    workers, next_worker = choose_workers(world)
    generation = world.generation + 1
    detail: dict[str, float] = {"processes": len(workers) * world.rules.processes}
    if world.stopped_s is not None:
        detail["stopped_s"] = round(turn.now_s - world.stopped_s, 3)
    left = [worker for worker in world.workers if worker not in workers]
    for worker in left:
        turn.record("worker.left", who=f"worker {worker}", workers=(worker,))
    for worker in workers:
        if worker not in world.workers:
            turn.record("worker.joined", who=f"worker {worker}", workers=(worker,))
    turn.update(
        generation=generation,
        workers=workers,
        next_worker=next_worker,
        leaving=frozenset(),
        stopped_s=None,
    )
    turn.update(phase=Running(turn.now_s, frozenset(turn.world.ranks), heard_s=turn.now_s))
    turn.actions.append(StartWorld(generation, workers))
    turn.record("generation.started", workers=workers, detail=detail)


def _stop_world(turn: _Turn, cause: StopCause, why: str, *, grace_s: float | None = None) -> None:
    """Begin to stop a world that trains; ``grace_s`` is a further limit of the time that it may take."""
    phase = turn.world.phase
    if not isinstance(phase, Running):
        return
    grace_s = turn.world.rules.grace_s if grace_s is None else min(grace_s, turn.world.rules.grace_s)
    turn.actions.append(AnnounceStop())
    turn.record("stop.announced", why=why, detail={"grace_s": grace_s})
    deadline_s = turn.now_s + grace_s
    turn.update(
        phase=Stopping(cause, why, turn.now_s, deadline_s, phase.living, turn.now_s - phase.began_s),
        stopped_s=turn.now_s,
    )


def _leave_world(turn: _Turn) -> None:
    """Decide what follows a world of which no process is left."""
    world, phase = turn.world, turn.world.phase
    if isinstance(phase, Running):
        _end(turn, Over("run.finished", "every process has ended with exit code 0"))
        return
    if not isinstance(phase, Stopping):
        return
    if phase.cause == "failure" and world.failures > world.rules.max_restarts:
        _end(turn, Over("run.failed", _explain_failure(world, phase), world.failure))
    elif world.stop_why:
        _end(turn, Over("run.stopped", world.stop_why))
    elif phase.cause == "death":
        _restart_after_death(turn, phase)
    else:
        turn.update(phase=Waiting(turn.now_s, phase.why))


def _restart_after_death(turn: _Turn, phase: Stopping) -> None:
    quick_deaths = turn.world.quick_deaths + 1 if phase.lived_s < QUICK_S else 0
    if quick_deaths >= MOST_QUICK_DEATHS:
        why = f"{phase.why}; {MOST_QUICK_DEATHS} times in a row within {QUICK_S:.0f} s of its start"
        _end(turn, Over("run.failed", why))
        return
    delay_s = _compute_delay_s(quick_deaths)
    turn.update(quick_deaths=quick_deaths, phase=Waiting(turn.now_s + delay_s, phase.why))


def _explain_failure(world: World, phase: Stopping) -> str:
    if not world.rules.max_restarts:
        return phase.why
    count = world.rules.max_restarts
    return f"{phase.why}, after {count} restart{'s' * (count != 1)} (--max-restarts)"


def _compute_delay_s(quick_deaths: int) -> float:
    """Return how long the next start waits after this many quick deaths in a row."""
    if quick_deaths < FIRST_DELAYED:
        return 0.0
    return min(2.0 ** (quick_deaths - FIRST_DELAYED), LONGEST_DELAY_S)


def _end(turn: _Turn, over: Over) -> None:
    turn.update(phase=over)
    turn.actions.append(EndRun(over))
