"""Requests to a run under the contract of torchrun, from the command line and the controller."""

from collections.abc import Container, Mapping

from elastane.run.nouns.control import (
    Answer,
    Ask,
    AskCheckpoint,
    AskDrain,
    AskDrainNode,
    AskEvict,
    AskResize,
    AskStatus,
    AskStop,
    ProcessInfo,
)
from elastane.run.nouns.spec import RunSpec
from elastane.run.scripts.worlds.decisions import choose_workers, list_finished
from elastane.run.scripts.worlds.messages import (
    DrainRequest,
    KillRequest,
    ResizeRequest,
    StopRequest,
    WorldInput,
)
from elastane.run.scripts.worlds.state import LocalRank, Over, Running, Stopping, Waiting, World


def find_world_refusal(world: World, spec: RunSpec, ask: Ask) -> str:
    """Return why a request cannot be met; empty if it can."""
    if isinstance(ask, AskStatus | AskEvict):
        return ""
    if isinstance(world.phase, Over):
        return f"the run is over: {world.phase.why}"
    if isinstance(ask, AskStop):
        return ""
    if world.stop_why:
        return "the run is ending, so nothing can be changed any more"
    if isinstance(ask, AskCheckpoint):
        return (
            "this run keeps the contract of torchrun: its script writes its own snapshots, for example "
            "when it gets SIGTERM"
        )
    if isinstance(ask, AskDrain):
        return _find_drain_refusal(world, ask)
    if isinstance(ask, AskDrainNode):
        return "an unmodified script trains on one machine; to end the run, use `elastane stop`"
    return _find_resize_refusal(world, spec, ask)


def _find_drain_refusal(world: World, ask: AskDrain) -> str:
    if ask.worker not in world.workers:
        present = ", ".join(map(str, world.workers))
        return f"no worker {ask.worker} in this run; running: {present or 'none'}"
    if world.target <= 1 and ask.worker not in world.leaving:
        return (
            f"worker {ask.worker} cannot leave: a run needs one worker; to end the run, use `elastane stop`"
        )
    return ""


def _find_resize_refusal(world: World, spec: RunSpec, ask: AskResize) -> str:
    if ask.unless_by_hand and world.by_hand:
        return "a user has set its number of workers"
    low, high = ask.limits or (spec.min_workers, spec.max_workers)
    if not low <= ask.workers <= high:
        return f"{ask.workers} workers are outside this run's limits of {low} to {high}"
    return ""


def translate_request(ask: Ask) -> WorldInput | None:
    """Return the input for the decisions of a request that was not refused; None: it changes nothing."""
    match ask:
        case AskResize(workers=workers, limits=limits):
            return ResizeRequest(workers, by_hand=limits is None)
        case AskDrain(worker=worker):
            return DrainRequest(worker)
        case AskStop(who=who, why=why):
            return StopRequest(who, why)
        case AskEvict():
            return KillRequest()
        case AskStatus() | AskCheckpoint() | AskDrainNode():
            return None


def build_world_status(
    world: World,
    spec: RunSpec,
    pids: Mapping[LocalRank, int],
    others: tuple[ProcessInfo, ...],
    *,
    why: str = "",
) -> Answer:
    """Return the answer to a request.

    Args:
        world: after the request.
        spec: of the run.
        pids: of the living processes.
        others: the agent and the fork server.
        why: the request was refused; empty: it was not.
    """
    return Answer(
        ok=not why,
        why=why,
        term=1,
        generation=world.generation,
        target=world.target,
        by_hand=world.by_hand,
        state=describe_world(world, pids),
        processes=(*others, *_list_processes(world, pids)),
        spec=spec,
    )


def describe_world(world: World, pids: Container[LocalRank]) -> str:
    """Return one word for the state of the run.

    Args:
        world: the newest one.
        pids: the processes that are known to run.
    """
    match world.phase:
        case Over():
            return "over"
        case Waiting():
            return "changing" if world.generation else "starting"
        case Stopping():
            return "stopping" if world.stop_why else "changing"
        case Running():
            if list_finished(world):
                return "finishing"
            all_run = all(rank in pids for rank in world.living)
            return "training" if all_run and choose_workers(world)[0] == world.workers else "changing"


def _list_processes(world: World, pids: Mapping[LocalRank, int]) -> tuple[ProcessInfo, ...]:
    """Return a row for each process. Only the first process of a worker counts as the member."""
    return tuple(
        ProcessInfo(
            role="worker",
            pid=pids[rank],
            worker=rank.worker,
            generation=world.generation,
            state=_describe_rank(world, rank, number),
        )
        for number, rank in enumerate(world.ranks)
        if rank in pids and rank in world.living
    )


def _describe_rank(world: World, rank: LocalRank, number: int) -> str:
    if rank.local:
        return f"rank {number}"
    if isinstance(world.phase, Stopping):
        return "stopping"
    return "draining" if rank.worker in world.leaving else "member"
