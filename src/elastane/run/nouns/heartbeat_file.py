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
"""A worker of one process has the slot of its number modulo this one. No two workers that are alive at once
share one: the agent leaves out the numbers for which they would."""


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


def compute_slot_offset(worker: WorkerId, process: int = 0, processes: int = 1) -> int:
    """Return where the slot of a process begins in the file, in bytes.

    Args:
        process: its number in the worker.
        processes: the number of processes of each worker of the run.
    """
    return (worker % (SLOTS // processes) * processes + process) * SLOT.size
