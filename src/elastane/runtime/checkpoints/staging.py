"""Memory that a checkpoint is copied to: provided once, used again, touched before anybody waits for it."""

from collections.abc import Sequence

import msgspec
import torch

from elastane.runtime.checkpoints.entry import Entry

ALIGNMENT = 64
TOUCHED_AT_ONCE = 8 << 20


def _room(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Staging:
    """One stretch of host memory, as large as the largest share of the state this worker has had to copy."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def provide(self, nbytes: int) -> None:
        """Have so much memory ready: that the kernel provides a page takes longer than to copy it."""
        if self._memory.numel() >= nbytes:
            return
        self._memory = torch.empty(0, dtype=torch.uint8)  # not both at once
        self._memory = torch.empty(nbytes, dtype=torch.uint8)
        for start in range(0, nbytes, TOUCHED_AT_ONCE):
            self._memory[start : start + TOUCHED_AT_ONCE].zero_()

    def copied(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """The entries as they are now; valid until the next call."""
        self.provide(sum(_room(entry.data.nbytes) for entry in entries))
        copies, start = [], 0
        for entry in entries:
            stop = start + entry.data.nbytes
            data = self._memory[start:stop].view(entry.data.dtype).view(-1) if stop > start else entry.data
            data.copy_(entry.data)
            copies.append(msgspec.structs.replace(entry, data=data))
            start += _room(entry.data.nbytes)
        return tuple(copies)
