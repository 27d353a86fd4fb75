"""The heartbeat file: progress of every training thread of a node, in memory shared through its file `beats`.

The agent creates it; each worker maps it and writes its own slot, and the agent reads all slots. A slot holds
a counter, which moves only with progress, and the phase of the worker.
"""

import struct
from enum import IntEnum

from elastane.run.nouns.membership import WorkerId

SLOT = struct.Struct("<qqd")
"""Counter, phase, and the longest time in seconds the worker ever spent between two beats in that phase (0:
not known yet), or the exit code in `Phase.ENDING`; little-endian, 64 bits each."""

SLOTS = 4096
"""A worker has the slot of its number modulo this one. No two workers that are alive at once share one: the
agent leaves out the numbers for which they would."""


class Phase(IntEnum):
    """The phase of a worker. Short silence is suspicious only in a step, because peers wait for the worker.

    In a step the worker waits for its peers (`STEP`, with ten beats a second), waits for its samples (`DATA`)
    or computes (`COMPUTE`). In `ENDING` it has left the run, and its process ends as Python ends.
    """

    STARTING = 0
    STEP = 1
    USER = 2
    FINISHED = 3
    COMPUTE = 4
    DATA = 5
    ENDING = 6


def compute_slot_offset(worker: WorkerId) -> int:
    """Return where the worker's slot begins in the file, in bytes."""
    return worker % SLOTS * SLOT.size
