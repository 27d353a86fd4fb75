"""Progress of the training thread, where the agent can see it: progress, not liveness, is the heartbeat."""

import mmap
from pathlib import Path

from elastane.api.heartbeat import SLOT, Phase, offset


class Heartbeat:
    """One worker's slot; without a file (alone) beats go nowhere."""

    def __init__(self, path: Path | None, worker: int) -> None:
        self._memory: mmap.mmap | None = None
        self._offset = offset(worker)
        self._count = 0
        if path is not None:
            with path.open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), 0)

    def beat(self, phase: Phase) -> None:
        """The training thread has got somewhere, or waits for a peer that has not."""
        if self._memory is not None:
            self._count += 1
            SLOT.pack_into(self._memory, self._offset, self._count, phase)
