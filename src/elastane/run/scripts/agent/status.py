"""What requests to an unmodified script learn about it, and what decides whether they can be met. Pure."""

from collections.abc import Container, Mapping

from elastane.run.coordinator.refusals import Changeable
from elastane.run.nouns.control import Answer, ProcessInfo
from elastane.run.nouns.spec import RunSpec
from elastane.run.scripts.worlds.decisions import choose_workers, list_finished
from elastane.run.scripts.worlds.state import LocalRank, Over, Running, Stopping, Waiting, World


def describe_changeable(world: World) -> Changeable:
    """Return what decides whether a request can be met."""
    return Changeable(
        over=world.phase.why if isinstance(world.phase, Over) else "",
        ending="its processes may still save" if world.stop_why else "",
        target=world.target,
        workers=world.workers,
        draining=world.leaving,
        by_hand=world.by_hand,
        no_checkpoint="this run keeps the contract of torchrun: its script writes its own snapshots, for "
        "example when it gets SIGTERM",
        no_node="an unmodified script trains on one machine; to end the run, use `elastane stop`",
    )


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
