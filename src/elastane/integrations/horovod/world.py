"""The processes that train together, and the interrupts of their training."""

import os
from typing import NamedTuple

import torch.distributed as dist

from elastane.common.errors import BadInput


class HorovodWorld(NamedTuple):
    """The place of this process among all, as torchrun's environment variables say it.

    Args:
        rank: among all processes.
        size: number of all processes.
        local_rank: among those of this worker.
        local_size: number of those of this worker.
        cross_rank: number of this worker.
        cross_size: number of workers.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1


class _Process:
    """The state of this process: its world, and whether it opened the process group."""

    world: HorovodWorld | None = None
    owns_group = False


def init() -> None:
    """Join the processes that `elastane run --contract torchrun` has started; alone without it.

    A second call does nothing, as in Horovod.

    Raises:
        BadInput: the environment variables contradict each other.
    """
    if _Process.world is not None:
        return
    world = _read_world()
    if world.size > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
        _Process.owns_group = True
    _Process.world = world


def shutdown() -> None:
    """Leave the other processes; `init` may be called again."""
    if _Process.owns_group and dist.is_initialized():
        dist.destroy_process_group()
    _Process.world, _Process.owns_group = None, False


def is_initialized() -> bool:
    return _Process.world is not None


def get_world() -> HorovodWorld:
    """Return the place of this process.

    Raises:
        BadInput: `init` was not called.
    """
    if _Process.world is None:
        raise BadInput(
            "hvd.init() was not called",
            means="a process has a rank only once it has joined the others",
            do="call hvd.init() at the beginning of the script",
        )
    return _Process.world


def rank() -> int:
    return get_world().rank


def size() -> int:
    return get_world().size


def local_rank() -> int:
    return get_world().local_rank


def local_size() -> int:
    return get_world().local_size


def cross_rank() -> int:
    return get_world().cross_rank


def cross_size() -> int:
    return get_world().cross_size


def is_homogeneous() -> bool:
    """Return whether all workers have the same number of processes; they always have."""
    return True


def _read_world() -> HorovodWorld:
    if "RANK" not in os.environ:
        return HorovodWorld()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    texts = [os.environ.get(name, default) for name, default in zip(names, "010101", strict=True)]
    numbers = [int(text) if text.isdecimal() else -1 for text in texts]
    world = HorovodWorld(*numbers)
    if not all(0 <= one < of for one, of in (world[0:2], world[2:4], world[4:6])):
        found = ", ".join(f"{name}={text}" for name, text in zip(names, texts, strict=True))
        raise BadInput(
            f"the environment has {found}",
            means="each rank must be a number below its size",
            do="start the script with: elastane run --contract torchrun SCRIPT",
        )
    return world


class HorovodInternalError(RuntimeError):
    """An exchange failed, because another process has ended."""


class HostsUpdatedInterrupt(RuntimeError):
    """The number of processes is about to change; all processes have made the same commit.

    Args:
        skip_sync: kept for scripts that read it; the new processes always synchronise.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        self.skip_sync = skip_sync
        super().__init__("the number of processes changes")
