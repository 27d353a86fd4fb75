"""The heartbeat file, which shows the agent the progress of the training thread, not only its liveness."""

import mmap
import sys
import time
from importlib.abc import MetaPathFinder
from pathlib import Path

from elastane.run.nouns.heartbeat_file import SLOT, Phase, compute_slot_offset
from elastane.run.worker.gangs.seat import LONE_SEAT, Seat


class Heartbeat:
    """The slot of this process in the heartbeat file; without a file (alone) a beat does nothing."""

    def __init__(self, path: Path | None, worker: int, seat: Seat = LONE_SEAT) -> None:
        self._memory: mmap.mmap | None = None
        self._offset = compute_slot_offset(worker, seat.number, seat.processes)
        self._count = 0
        self._phase = Phase.STARTING
        self._beat_at = time.monotonic()
        self._longest_s = dict.fromkeys(Phase, 0.0)
        if path is not None:
            with path.open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), 0)

    def beat(self, phase: Phase, *, like: Phase | None = None) -> None:
        """Record that the training thread has made progress, or waits for a peer that has made none.

        Args:
            like: the phase as which the past one counts; a rehearsal takes as long as COMPUTE.
        """
        now = time.monotonic()
        ended_phase = like or self._phase
        self._longest_s[ended_phase] = max(self._longest_s[ended_phase], now - self._beat_at)
        self._phase, self._beat_at = phase, now
        if self._memory is not None:
            self._count += 1
            SLOT.pack_into(self._memory, self._offset, self._count, phase, self._longest_s[phase])

    def beat_at_imports(self) -> None:
        """Record progress at each import of a module, until the script joins."""
        sys.meta_path.insert(0, _ImportBeat(self))

    def end(self, code: int) -> None:
        """Record that nothing of this worker is needed any more, and that its process ends with this code."""
        if self._memory is not None:
            SLOT.pack_into(self._memory, self._offset, self._count + 1, Phase.ENDING, code)


class _ImportBeat(MetaPathFinder):
    """Finds no module; it notices that one is imported."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat

    def find_spec(self, *_module: object) -> None:
        self._heartbeat.beat(Phase.STARTING)


def stop_beats_at_imports() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _ImportBeat)]
