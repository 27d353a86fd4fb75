"""Detection of workers that hang: alive, but without progress.

The allowed silence follows from the intervals between the worker's own heartbeats, so users have no timeout
to tune.
"""

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from elastane.run.nouns.heartbeat_file import SLOT, SLOTS, Phase, compute_slot_offset
from elastane.run.nouns.membership import WorkerId

READ_EVERY_S = 0.05
BLIND_S = 1.0
USUAL_INTERVALS = 20
UNKNOWN_S = 120.0
AWAITED_S = 5.0
SILENT_S = 2.0
IMPORTING_S = 2.0
TRAINING = (Phase.STEP, Phase.COMPUTE, Phase.DATA, Phase.USER)
PATIENCE_S = {
    Phase.STEP: 2.0,
    Phase.COMPUTE: 2.0,
    Phase.USER: 60.0,
    # Storage may stall for minutes; a replacement of the worker would wait for it too.
    Phase.DATA: 600.0,
    # No worker waits for a starting one, and a large model or dataset takes long to load.
    Phase.STARTING: 1800.0,
}


@dataclass(frozen=True, slots=True)
class Pulse:
    """The state of one worker's slot, as read last. Times are monotonic seconds.

    Args:
        rhythm_s: the longest time that the worker spent between two heartbeats in this phase; 0: unknown.
        moved_s: when the agent last saw its counter or its phase change.
    """

    counter: int
    phase: int
    rhythm_s: float
    moved_s: float
    read_s: float


def update_pulse(pulse: Pulse | None, counter: int, phase: int, rhythm_s: float, now: float) -> Pulse:
    """Return the pulse after one more reading at ``now``."""
    if pulse is not None and now - pulse.read_s > BLIND_S:
        # The agent, or the whole machine, was suspended: silence during that time proves nothing.
        return Pulse(counter, phase, rhythm_s, pulse.moved_s + (now - pulse.read_s), now)
    if pulse is None or (counter, phase) != (pulse.counter, pulse.phase):
        return Pulse(counter, phase, rhythm_s, now, now)
    return replace(pulse, read_s=now)


def is_hung(pulse: Pulse, now: float, peers: Iterable[Pulse], *, elsewhere: bool = False) -> bool:
    """Return whether the worker has been silent for longer than `compute_patience_s`.

    If no peer has moved since, the machine is as likely to be the cause, and a kill could lose the last copy
    of the state: then the worker has `UNKNOWN_S` at least.

    Args:
        peers: other workers of this node.
        elsewhere: other nodes have workers.
    """
    patience_s = compute_patience_s(pulse)
    if not elsewhere and not any(peer.moved_s > pulse.moved_s and peer.phase in TRAINING for peer in peers):
        patience_s = max(patience_s, UNKNOWN_S)
    return now - pulse.moved_s > patience_s


def is_awaiting_data(pulse: Pulse, now: float) -> bool:
    """Return whether the worker has waited for samples for so long that the agent reports it."""
    return pulse.phase == Phase.DATA and now - pulse.moved_s > AWAITED_S


def is_importing(pulse: Pulse, now: float) -> bool:
    """Return whether the script has not joined, and has begun to import a module in the last seconds."""
    return pulse.phase == Phase.STARTING and pulse.counter > 0 and now - pulse.moved_s < IMPORTING_S


def measure_silence(pulse: Pulse, now: float) -> float:
    """Return the seconds since the last progress of a worker; 0: it has made some a moment ago."""
    silent_s = now - pulse.moved_s
    return round(silent_s, 1) if silent_s > SILENT_S else 0.0


def compute_patience_s(pulse: Pulse) -> float:
    """Return how many seconds this worker may be silent in its phase."""
    if pulse.phase in (Phase.FINISHED, Phase.ENDING):
        return float("inf")
    # Compilers and empty caches slow the first microbatch by an unknown amount.
    if pulse.phase == Phase.COMPUTE and not pulse.rhythm_s:
        return UNKNOWN_S
    return max(PATIENCE_S[Phase(pulse.phase)], USUAL_INTERVALS * pulse.rhythm_s)


class HeartbeatFile:
    """The agent's side of the heartbeat file. The constructor creates the file, filled with zeros.

    Args:
        processes: the number of processes of each worker.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, processes: int = 1) -> None:
        self._processes = processes
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # Not sparse: once the disk is full, touching a missing page would kill the agent.
            os.posix_fallocate(fd, 0, SLOTS * SLOT.size)
            self._slots = mmap.mmap(fd, SLOTS * SLOT.size)
        finally:
            os.close(fd)

    def clear(self, worker: WorkerId) -> None:
        """Reset the slots of a worker before it starts; another worker may have used them."""
        for process in range(self._processes):
            offset = compute_slot_offset(worker, process, self._processes)
            SLOT.pack_into(self._slots, offset, 0, Phase.STARTING, 0.0)

    def read(self, worker: WorkerId, process: int = 0) -> tuple[int, int, float]:
        """Return counter, phase and rhythm in seconds of a process of a worker."""
        offset = compute_slot_offset(worker, process, self._processes)
        counter, phase, rhythm_s = SLOT.unpack_from(self._slots, offset)
        return counter, phase, rhythm_s

    def close(self) -> None:
        self._slots.close()
