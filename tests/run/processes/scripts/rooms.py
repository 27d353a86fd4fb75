"""Rooms on the CPU: memory of the host stands for that of a GPU, as in a mirrored run.

Workers pass its descriptors through their doors, and nothing maps it by a path.
"""

from collections.abc import Sequence

from elastane.run.worker import worker_settings
from elastane.run.worker.state import placement
from elastane.run.worker.state.rooms import DeviceMemory, Sections
from elastane.run.worker.state.shared_memory import Arena, Section, map_sections


class HostMemory(DeviceMemory):
    """Memory of the host in place of a device."""

    identity = "host"

    def __init__(self) -> None:
        self._arenas: list[Arena] = []

    def allocate(self, sections: Sequence[Section]) -> tuple[Sections, int]:
        arena = Arena("room", sections)
        self._arenas.append(arena)
        return arena.tensors, arena.fd

    def map(self, descriptor: int, sections: Sequence[Section]) -> Sections:
        own = worker_settings.get_settings()
        if own.run_dir is not None:
            (own.run_dir.root / f"mapped-{own.worker}").touch()
        return map_sections(descriptor, sections)


def install(*, without: int | None = None) -> None:
    """Let mirrored models of this process have rooms, but not those of one worker."""
    if worker_settings.get_settings().worker != without:
        setattr(placement, "find_device_memory", lambda _device: HostMemory())  # noqa: B010 - for mypy
