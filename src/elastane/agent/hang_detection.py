"""Progress, not liveness: a worker that lives but does not move is hung.

How long a silence is too long follows from the worker's own rhythm, so there is no timeout to tune.
"""

import mmap
import os
from dataclasses import dataclass, replace
from pathlib import Path

from elastane.api.heartbeat_file import SLOT, SLOTS, Phase, compute_slot_offset
from elastane.api.membership import WorkerId

READ_EVERY_S = 0.05
BLIND_S = 1.0
USUAL_INTERVALS = 20
UNKNOWN_S = 120.0
AWAITED_S = 5.0
PATIENCE_S = {
    Phase.STEP: 2.0,
    Phase.COMPUTE: 2.0,
    Phase.USER: 60.0,
    # Storage may stand still for minutes; to end a worker for that would make another one wait for it.
    Phase.DATA: 600.0,
    # Nobody waits for it, and a large model or dataset takes its time.
    Phase.STARTING: 1800.0,
}


@dataclass(frozen=True, slots=True)
class Pulse:
    """What has been seen of one worker's slot. Times are in seconds, on a monotonic clock.

    Args:
        counter: last read.
        phase: last read.
        rhythm_s: the longest the worker ever spent between two beats in this phase; 0 while unknown.
        moved_s: when it was first seen as it is.
        read_s: when it was last read.
    """

    counter: int
    phase: int
    rhythm_s: float
    moved_s: float
    read_s: float


def update_pulse(pulse: Pulse | None, counter: int, phase: int, rhythm_s: float, now: float) -> Pulse:
    """The pulse after one more reading at ``now``."""
    if pulse is not None and now - pulse.read_s > BLIND_S:
        # The agent itself was held up, perhaps the whole machine; silence it did not watch proves nothing.
        return Pulse(counter, phase, rhythm_s, pulse.moved_s + (now - pulse.read_s), now)
    if pulse is None or (counter, phase) != (pulse.counter, pulse.phase):
        return Pulse(counter, phase, rhythm_s, now, now)
    return replace(pulse, read_s=now)


def is_hung(pulse: Pulse, now: float) -> bool:
    """No progress for longer than its own rhythm explains."""
    return now - pulse.moved_s > compute_patience_s(pulse)


def is_awaiting_data(pulse: Pulse, now: float) -> bool:
    """It has waited for its samples for so long that somebody should know: its peers wait for it."""
    return pulse.phase == Phase.DATA and now - pulse.moved_s > AWAITED_S


def compute_patience_s(pulse: Pulse) -> float:
    """How long this worker may be silent in the phase it is in, in seconds."""
    if pulse.phase == Phase.FINISHED:
        return float("inf")
    # Compilers and caches make the first time long, and nobody knows how long.
    if pulse.phase == Phase.COMPUTE and not pulse.rhythm_s:
        return UNKNOWN_S
    return max(PATIENCE_S[Phase(pulse.phase)], USUAL_INTERVALS * pulse.rhythm_s)


class HeartbeatFile:
    """The heartbeat file, created zeroed.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # Not sparse: on a disk that is full by then, touching a missing page would kill the agent.
            os.posix_fallocate(fd, 0, SLOTS * SLOT.size)
            self._slots = mmap.mmap(fd, SLOTS * SLOT.size)
        finally:
            os.close(fd)

    def clear(self, worker: WorkerId) -> None:
        """Before the worker starts: its slot may have been another's."""
        SLOT.pack_into(self._slots, compute_slot_offset(worker), 0, Phase.STARTING, 0.0)

    def read(self, worker: WorkerId) -> tuple[int, int, float]:
        """Counter, phase and rhythm in seconds."""
        counter, phase, rhythm_s = SLOT.unpack_from(self._slots, compute_slot_offset(worker))
        return counter, phase, rhythm_s

    def close(self) -> None:
        self._slots.close()
