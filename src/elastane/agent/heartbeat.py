"""Progress, not liveness: a worker that lives but does not move is hung.

How long a silence is too long follows from the worker's own rhythm, so there is no timeout to tune.
"""

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from elastane.api.heartbeat import SLOT, SLOTS, Phase, offset
from elastane.api.membership import WorkerId

READ_EVERY_S = 0.05
BLIND_S = 1.0
USUAL_INTERVALS = 20
IGNORED_INTERVALS = 3
STARTING_S = 120.0
PATIENCE_S = {Phase.STEP: 2.0, Phase.USER: 60.0}


@dataclass(frozen=True, slots=True)
class Pulse:
    """What has been seen of one worker's slot. Times are in seconds, on a monotonic clock.

    Args:
        counter: last read.
        phase: last read.
        moved_s: when either was first seen as it is.
        read_s: when it was last read.
        intervals: how many between two changes of the counter were seen within a step.
        longest_s: of those between two changes, per phase; the first three within a step do not count, as
            compilers and caches make them long.
    """

    counter: int
    phase: int
    moved_s: float
    read_s: float
    intervals: int = 0
    longest_s: Mapping[int, float] = field(default_factory=dict)


def observed(pulse: Pulse | None, counter: int, phase: int, now: float) -> Pulse:
    """The pulse after one more reading at ``now``."""
    if pulse is None:
        return Pulse(counter, phase, now, now)
    if now - pulse.read_s > BLIND_S:
        # The agent itself was held up, perhaps the whole machine; silence it did not watch proves nothing.
        moved_s = pulse.moved_s + (now - pulse.read_s)
        return replace(pulse, counter=counter, phase=phase, moved_s=moved_s, read_s=now)
    if (counter, phase) == (pulse.counter, pulse.phase):
        return replace(pulse, read_s=now)
    moved = replace(pulse, counter=counter, phase=phase, moved_s=now, read_s=now)
    if phase != pulse.phase:
        return moved
    intervals = pulse.intervals + (phase == Phase.STEP)
    if phase == Phase.STEP and intervals <= IGNORED_INTERVALS:
        return replace(moved, intervals=intervals)
    longest_s = max(pulse.longest_s.get(phase, 0.0), now - pulse.moved_s)
    return replace(moved, intervals=intervals, longest_s={**pulse.longest_s, phase: longest_s})


def is_hung(pulse: Pulse, now: float) -> bool:
    """No progress for longer than its own rhythm explains."""
    return now - pulse.moved_s > allowed_s(pulse)


def allowed_s(pulse: Pulse) -> float:
    """How long this worker may be silent in the phase it is in, in seconds."""
    if pulse.phase == Phase.FINISHED:
        return float("inf")
    if pulse.phase == Phase.STARTING:
        return STARTING_S
    phase = Phase.STEP if pulse.phase == Phase.STEP else Phase.USER
    return max(PATIENCE_S[phase], USUAL_INTERVALS * pulse.longest_s.get(phase, 0.0))


class Beats:
    """The heartbeat file, created zeroed.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, SLOTS * SLOT.size)
            self._slots = mmap.mmap(fd, SLOTS * SLOT.size)
        finally:
            os.close(fd)

    def clear(self, worker: WorkerId) -> None:
        """Before the worker starts: its slot may have been another's."""
        SLOT.pack_into(self._slots, offset(worker), 0, Phase.STARTING)

    def read(self, worker: WorkerId) -> tuple[int, int]:
        """Counter and phase."""
        counter, phase = SLOT.unpack_from(self._slots, offset(worker))
        return counter, phase

    def close(self) -> None:
        self._slots.close()
