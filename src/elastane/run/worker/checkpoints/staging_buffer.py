"""The memory for the copy of a checkpoint: reserved once, reused, and touched before a copy needs it."""

import mmap

import torch

from elastane.run.worker.checkpoints.part_encoding import EncodedPart

TOUCHED_AT_ONCE = 8 << 20
ENVELOPES = 1.02
"""An upper bound for the size of a file, as a multiple of the size of its elements."""


class StagingBuffer:
    """Contiguous host memory, as large as the largest part of the state that this worker has copied."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def reserve(self, nbytes: int) -> None:
        """Reserve memory for a file of state; the kernel takes longer to provide a page than to copy it.

        Args:
            nbytes: the size of the state, without the envelopes.
        """
        self._grow_to(int(nbytes * ENVELOPES))

    def stage(self, file: EncodedPart) -> None:
        """Copy a file into the buffer; the copy is valid until the next call."""
        self._grow_to(file.bytes)
        file.lay_out(self._memory)

    def _grow_to(self, nbytes: int) -> None:
        if self._memory.numel() >= nbytes:
            return
        self._memory = torch.empty(0, dtype=torch.uint8)  # freed before the larger one is allocated
        # Page-aligned, so that the disk can read the memory without another copy in the kernel.
        pages = mmap.mmap(-1, nbytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        self._memory = torch.frombuffer(pages, dtype=torch.uint8)
        for start in range(0, nbytes, TOUCHED_AT_ONCE):
            self._memory[start : start + TOUCHED_AT_ONCE].zero_()
