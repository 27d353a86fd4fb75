"""The memory that a checkpoint is copied to: reserved once, reused, and touched before a copy needs it."""

import mmap

import torch

from elastane.runtime.checkpoints.part_encoding import EncodedPart

TOUCHED_AT_ONCE = 8 << 20
ENVELOPES = 1.02
"""What surrounds the elements in a file, as a share of them, an upper bound."""


class StagingBuffer:
    """Contiguous host memory, as large as the largest share of the state that this worker has copied."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def reserve(self, nbytes: int) -> None:
        """Reserve memory for a file of state: getting a page from the kernel takes longer than copying it.

        Args:
            nbytes: of the state, without the envelopes.
        """
        self._grow_to(int(nbytes * ENVELOPES))

    def stage(self, file: EncodedPart) -> None:
        """Copy a file; the copy is valid until the next call."""
        self._grow_to(file.bytes)
        file.lay_out(self._memory)

    def _grow_to(self, nbytes: int) -> None:
        if self._memory.numel() >= nbytes:
            return
        self._memory = torch.empty(0, dtype=torch.uint8)  # freed before the larger one is allocated
        # Page-aligned, so that the disk can read it without another copy in the kernel.
        pages = mmap.mmap(-1, nbytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        self._memory = torch.frombuffer(pages, dtype=torch.uint8)
        for start in range(0, nbytes, TOUCHED_AT_ONCE):
            self._memory[start : start + TOUCHED_AT_ONCE].zero_()
