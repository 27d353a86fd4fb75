"""Memory that a checkpoint is copied to: provided once, used again, touched before anybody waits for it."""

import mmap

import torch

from elastane.runtime.checkpoints.part_encoding import EncodedPart

TOUCHED_AT_ONCE = 8 << 20
ENVELOPES = 1.02
"""What surrounds the elements in a file, as a share of them, generously."""


class StagingBuffer:
    """One stretch of host memory, as large as the largest share of the state this worker has had to copy."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def provide(self, nbytes: int) -> None:
        """Have memory ready for a file of so much state: to get a page takes longer than to copy it.

        Args:
            nbytes: of the state.
        """
        self._at_least(int(nbytes * ENVELOPES))

    def take(self, file: EncodedPart) -> None:
        """Copy a file as it is now; valid until the next call."""
        self._at_least(file.bytes)
        file.lay_out(self._memory)

    def _at_least(self, nbytes: int) -> None:
        if self._memory.numel() >= nbytes:
            return
        self._memory = torch.empty(0, dtype=torch.uint8)  # not both at once
        # Page-aligned, so that a disk can take it from here without the kernel copying it once more.
        pages = mmap.mmap(-1, nbytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        self._memory = torch.frombuffer(pages, dtype=torch.uint8)
        for start in range(0, nbytes, TOUCHED_AT_ONCE):
            self._memory[start : start + TOUCHED_AT_ONCE].zero_()
