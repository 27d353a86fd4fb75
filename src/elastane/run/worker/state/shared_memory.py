"""Memory that peers on this machine can read: arenas with one tensor per section, and messages.

Both are memfds. A peer opens one through ``/proc/PID/fd/FD``. The kernel frees it with its last user, so
nothing remains after a ``kill -9``. Peers that have mapped the memory of a dead worker can still read it.
"""

import mmap
import os
import struct
import weakref
from collections.abc import Sequence

import msgspec
import torch

PAGE = 4096
ADDRESS = struct.Struct("<QQ")
"""The address of a shared message: file descriptor and size in bytes."""


class Section(msgspec.Struct, frozen=True):
    """The description of a flat buffer: a data type and a length in elements."""

    dtype: torch.dtype
    elements: int

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize


def map_sections(descriptor: int, sections: Sequence[Section]) -> tuple[torch.Tensor, ...]:
    """Return one 1-D tensor per section of an arena, by a descriptor that is open in this process."""
    return _view_sections(mmap.mmap(descriptor, 0), sections)


def _view_sections(memory: mmap.mmap, sections: Sequence[Section]) -> tuple[torch.Tensor, ...]:
    views, offset = [], 0
    for section in sections:
        views.append(torch.frombuffer(memory, dtype=section.dtype, count=section.elements, offset=offset))
        offset += -(-section.nbytes // PAGE) * PAGE
    return tuple(views)


def _count_bytes(sections: Sequence[Section]) -> int:
    return sum(-(-section.nbytes // PAGE) * PAGE for section in sections)


class Arena:
    """The arena of this worker.

    Args:
        name: the name in ``/proc/PID/maps``.
        sections: the sections, each at least one element long.

    Attributes:
        memory: all of it.
        tensors: one 1-D tensor per section, page-aligned, zero at first.
        fd: the descriptor of the memfd, which this worker sends to its peers.
    """

    def __init__(self, name: str, sections: Sequence[Section]) -> None:
        self.fd = os.memfd_create(f"elastane-{name}")
        os.ftruncate(self.fd, max(_count_bytes(sections), PAGE))
        self.memory = mmap.mmap(self.fd, 0)
        self.tensors = _view_sections(self.memory, sections)
        weakref.finalize(self, os.close, self.fd)


class PeerArenas:
    """Arenas of peers, mapped on first use.

    Args:
        sections: the sections of an arena; the same on every worker.
    """

    def __init__(self, sections: Sequence[Section]) -> None:
        self._sections = sections
        self._mapped: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}

    def map_sections(self, pid: int, fd: int) -> tuple[torch.Tensor, ...]:
        """Return the sections of the arena that is descriptor ``fd`` of process ``pid``.

        Raises:
            OSError: the process has ended, and this worker never mapped the arena.
        """
        if (pid, fd) not in self._mapped:
            # O_RDWR because torch has no read-only tensors. Workers never write to a peer's arena.
            descriptor = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
            try:
                self._mapped[pid, fd] = map_sections(descriptor, self._sections)
            finally:
                os.close(descriptor)
        return self._mapped[pid, fd]

    def forget(self, pid: int) -> None:
        """Unmap the arenas of a process that has ended."""
        self._mapped = {key: views for key, views in self._mapped.items() if key[0] != pid}


class SharedMessage:
    """A message that a peer on this machine reads once; freed with this object.

    Attributes:
        address: the address that the peer passes to `read_shared_message`.
    """

    def __init__(self, payload: Sequence[bytes | bytearray | memoryview]) -> None:
        fd = os.memfd_create("elastane-message")
        weakref.finalize(self, os.close, fd)
        size = 0
        with os.fdopen(fd, "wb", buffering=0, closefd=False) as file:
            for piece in payload:
                view = memoryview(piece).cast("B")
                while view:
                    view = view[file.write(view) or 0 :]
                size += memoryview(piece).nbytes
        self.address = ADDRESS.pack(fd, size)


def read_shared_message(pid: int, address: bytes | memoryview) -> mmap.mmap:
    """Map the shared message of process ``pid``; a copy would be slower, because it touches new memory.

    Raises:
        OSError: the process has ended.
    """
    fd, size = ADDRESS.unpack(address)
    descriptor = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
