"""One-sided reads of the memory of workers on other machines, with NIXL.

Only memory that stays for the life of a worker is lent: NIXL keeps what it knows of a peer's memory until the
peer is forgotten, so memory that is lent, freed and lent again would be read with an old key. NIXL reads over
the best network that UCX finds (InfiniBand, RoCE, shared memory, TCP), which neither encrypts nor checks the
reader.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np

from elastane.common.extras import require_for_import

Piece: TypeAlias = tuple[int, int]
"""Memory of a process: its address and its size in bytes."""

PROGRESS_US = 10_000
"""The thread of NIXL looks for work this often if the network does not wake it; 0 would keep a core busy."""


class NixlAgent:
    """The agent with which this worker lends its memory and reads that of its peers; for one thread.

    Args:
        name: no other worker of the run has it.
        reached: False: no other machine reaches this worker, so NIXL listens on this one only.

    Raises:
        MissingExtra: NIXL is not installed.
        OSError: NIXL does not work on this machine.
    """

    def __init__(self, name: str, *, reached: bool) -> None:
        self._lent: list[Piece] = []
        # Reads that were given up, with the memory to which they may still write.
        self._kept: list[NixlRead] = []
        with _ucx_settings(reached=reached), _as_os_errors():
            self.nixl = _import_nixl()
            config = self.nixl.nixlAgentConfig()
            config.useProgThread = True
            config.pthrDelay = PROGRESS_US
            config.syncMode = self.nixl.NIXL_THREAD_SYNC_NONE
            self.agent = self.nixl.nixlAgent(name, config)
            self.agent.createBackend("UCX", {})
            self.description: bytes = self.agent.getLocalPartialMD(self._build_regions(()), True, [])

    def _build_regions(self, pieces: Iterable[Piece]) -> Any:
        regions = [(address, size, 0, "") for address, size in pieces]
        return self.nixl.nixlRegDList(self.nixl.DRAM_SEG, regions)

    # -- lending -------------------------------------------------------------------------------------------

    def lend(self, memory: Piece) -> None:
        """Let peers read memory that stays until this process ends.

        Raises:
            OSError: the system does not allow it, for example because it limits the locked memory.
        """
        with _as_os_errors():
            self.agent.registerMem(self._build_regions([memory]), [])
        self._lent.append(memory)

    def has_lent(self, piece: Piece) -> bool:
        """Return whether peers can read a piece of memory."""
        return any(start <= piece[0] and sum(piece) <= start + size for start, size in self._lent)

    def describe_lent(self, first: int) -> tuple[bytes, int]:
        """Return what a peer needs to read memory that was lent later than some, and the number of all.

        Args:
            first: the number of regions that the peer knows.
        """
        count = len(self._lent)
        if first == count:
            return b"", count
        with _as_os_errors():
            return self.agent.getLocalPartialMD(self._build_regions(self._lent[first:]), True, []), count

    # -- reading -------------------------------------------------------------------------------------------

    def meet(self, description: bytes) -> str:
        """Take what a peer has described, itself or memory; return its name.

        Raises:
            OSError: NIXL cannot reach such a peer.
        """
        with _as_os_errors():
            name = self.agent.loadRemoteMD(description)
        return name.decode() if isinstance(name, bytes) else str(name)

    def begin_read(self, peer: str, pieces: Sequence[Piece], target: memoryview) -> "NixlRead":
        """Begin to read pieces of a peer's memory into one piece of this worker's.

        Raises:
            OSError: the peer cannot be reached, or it has not lent this memory.
        """
        address = np.frombuffer(target, np.uint8).ctypes.data
        own, start = [], address
        for _, size in pieces:
            own.append((start, size, 0))
            start += size
        region = self._build_regions([(address, target.nbytes)])
        memory = self.nixl.DRAM_SEG
        with _as_os_errors(), ExitStack() as undo:
            self.agent.registerMem(region, [])
            undo.callback(self.agent.deregisterMem, region, [])
            handle = self.agent.createXferReq(
                self.nixl.NIXL_READ,
                self.nixl.nixlXferDList(memory, own),
                self.nixl.nixlXferDList(memory, [(*piece, 0) for piece in pieces]),
                peer,
                b"",
                [],
            )
            undo.pop_all()
        return NixlRead(self, handle, region, target)

    def keep(self, read: "NixlRead") -> None:
        """Keep the target of a read until all of its bytes are there."""
        self._kept.append(read)
        self._kept = [each for each in self._kept if not each.free()]


class NixlRead:
    """One read, which is over when `has_ended` returns True or raises; then, or to give it up, call `end`."""

    def __init__(self, owner: NixlAgent, handle: int, region: Any, target: memoryview) -> None:
        self._owner, self._nixl, self._agent = owner, owner.nixl, owner.agent
        self._handle, self._region, self._target = handle, region, target
        self._begun = self._ended = self._failed = False

    def has_ended(self) -> bool:
        """Return whether the target has all bytes; begin the read if it has not begun.

        Raises:
            OSError: the peer is gone, or cannot be read.
        """
        if self._ended:
            return True
        self._failed = True
        with _as_os_errors():
            if self._begun:
                status = self._agent.getXferStatus(self._handle)
            else:
                self._begun = True
                status = self._agent.postXferReq(self._handle, b"")
        self._ended = status == self._nixl.NIXL_SUCCESS
        self._failed = not self._ended and status != self._nixl.NIXL_IN_PROG
        if self._failed:
            raise OSError(f"NIXL ends a read with status {status}")
        return self._ended

    def end(self) -> None:
        """Free the read, now if its bytes are there; else keep its target.

        NIXL would free a read that is under way, also after a disconnection from the peer. But the
        bytes may come all the same, and would be written to memory that has another use by then. After an
        error some may come, too, so the target of a failed read is kept for good.
        """
        self._owner.keep(self)

    def free(self) -> bool:
        """Free the read if all of its bytes are there; return whether they are."""
        if not self._failed:
            with suppress(OSError):
                if self.has_ended():
                    self._agent.releaseXferReq(self._handle)
                    self._agent.deregisterMem(self._region, [])
                    return True
        return False


@contextmanager
def _ucx_settings(*, reached: bool) -> Iterator[None]:
    """Set what UCX reads when it is loaded, unless the user has. Scripts do not see it."""
    # Its handlers would hide those of Python and of the script.
    wanted = {"UCX_HANDLE_ERRORS": "none", "UCX_LOG_LEVEL": "fatal", "NIXL_LOG_LEVEL": "FATAL"}
    if not reached:
        wanted["UCX_NET_DEVICES"] = "lo"
    added = {name: setting for name, setting in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _import_nixl() -> Any:
    with require_for_import("nixl", "--transport nixl"):
        import nixl

        return nixl


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise errors of NIXL, which have no common class, as those of the network."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except Exception as error:
        raise OSError(f"NIXL: {error}") from error
