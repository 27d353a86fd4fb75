"""The heartbeat file: progress of every worker's training thread, in memory shared through ``RunDir.beats``.

The agent creates it; each worker maps it and writes its own slot, the agent reads all. A slot is a counter,
which moves with progress and never otherwise, and the phase the worker is in.
"""

import struct
from enum import IntEnum

from elastane.api.membership import WorkerId

SLOT = struct.Struct("<qqd")
"""Counter, phase, and the longest time in seconds the worker ever spent between two beats in that phase (0:
not known yet); little-endian, 64 bits each."""

SLOTS = 4096
"""Worker numbers share slots modulo this; so many generations of workers are never alive together."""


class Phase(IntEnum):
    """Where a worker is. Only in a step, where it owes progress to its peers, is silence soon suspicious.

    In a step it waits for its peers (`STEP`, moving ten times a second), waits for its samples (`DATA`) or
    computes (`COMPUTE`).
    """

    STARTING = 0
    STEP = 1
    USER = 2
    FINISHED = 3
    COMPUTE = 4
    DATA = 5


def compute_slot_offset(worker: WorkerId) -> int:
    """Where the worker's slot begins in the file, in bytes."""
    return worker % SLOTS * SLOT.size
