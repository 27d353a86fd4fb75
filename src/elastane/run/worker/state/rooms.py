"""Rooms: memory of a device that peers on this machine map, so that no sum has to pass through the host.

An arena is memory of the host, and a room is memory of a device. A worker with rooms has one beside each of
its arenas, for the sections of parameters, and peers name it by the descriptor of the arena. What a peer
reads in a room stays there when the room's process is killed.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import torch

from elastane.run.worker.links.descriptor_door import DescriptorDoor, fetch_descriptor
from elastane.run.worker.links.handshake import Process
from elastane.run.worker.state.shared_memory import Section

Sections: TypeAlias = tuple[torch.Tensor, ...]


class DeviceMemory(ABC):
    """Memory of one device, which other processes can map, and which stays after its process is killed.

    Attributes:
        identity: equal in all processes that can map each other's memory.
    """

    identity: str

    @abstractmethod
    def allocate(self, sections: Sequence[Section]) -> tuple[Sections, int]:
        """Return new memory, all zeros, and a descriptor of it; both stay until this process ends."""

    @abstractmethod
    def map(self, descriptor: int, sections: Sequence[Section]) -> Sections:
        """Return the memory that another process has allocated, by its descriptor."""


class Rooms:
    """The rooms of this worker, and those of its peers that it has mapped.

    Args:
        memory: the memory of the device.
        sections: the sections of a room; the same on every worker.

    Attributes:
        identity: equal for workers that can reach each other's doors and map each other's rooms.
    """

    def __init__(self, memory: DeviceMemory, sections: Sequence[Section]) -> None:
        # A door is reached within its network only, even if processes see each other.
        self.identity = f"{memory.identity} {Path('/proc/self/ns/net').stat().st_ino}"
        self._memory, self._sections = memory, sections
        self._descriptors: dict[int, int] = {}
        self._mapped: dict[tuple[str, int], Sections | None] = {}
        self._door: DescriptorDoor | None = None

    def open(self, name: int) -> Sections:
        """Allocate a room, and return its sections.

        Args:
            name: by which peers ask for it.
        """
        tensors, self._descriptors[name] = self._memory.allocate(self._sections)
        return tensors

    def open_door(self, mark: bytes) -> str:
        """Let peers that know this worker's mark map its rooms; return the name of the door."""
        self._door = DescriptorDoor(mark, self._descriptors)
        return self._door.name

    def can_read(self, peer: Process) -> bool:
        """Return whether this worker and a peer on this machine read each other's rooms."""
        return bool(peer.door) and peer.device == self.identity

    def map(self, peer: Process, name: int) -> Sections | None:
        """Return the sections of a peer's room; None: the arena of this name has no room.

        Raises:
            ProcessLookupError: the peer has ended, and this worker never mapped the room.
            TimeoutError: the peer does not answer.
        """
        key = peer.door, name
        if key not in self._mapped:
            descriptor = fetch_descriptor(peer.door, peer.mark, name)
            if descriptor is None:
                self._mapped[key] = None
                return None
            try:
                self._mapped[key] = self._memory.map(descriptor, self._sections)
            finally:
                os.close(descriptor)
        return self._mapped[key]
