"""Reads of the memory of peers: they are queued, and a worker sends a status only after they have ended.

A status tells all members which sums and which state this worker has. With the statuses of all they go on and
change the memory that this worker reads. If a read were still under way then, it would be torn, and it would
overwrite what the new generation has put in the same place. So reads of older generations end before the
status, and their results count.
"""

from elastane.run.protocol.actions import LoadState, MergeSums, Reduce, TakeSums, TakeValues
from elastane.run.protocol.transitions.state import MemberState


def begin_read(me: MemberState, read: LoadState | MergeSums | Reduce | TakeSums | TakeValues) -> None:
    me.reads += 1
    me.actions.append(read)


def end_read(me: MemberState, generation: int) -> bool:
    """Record the end of a read; return whether it counts.

    A read does not count if the members of a later generation went on without its result: they may have
    changed what it has read.

    Args:
        generation: the number of the generation in which it began.
    """
    me.reads -= 1
    return generation >= me.reads_since


def discard_reads(me: MemberState, generation: int) -> None:
    """Discard the results of reads that began before a generation."""
    me.reads_since = generation


def is_current(me: MemberState, generation: int) -> bool:
    """Return whether this generation is still the present one, so that its members await announcements."""
    return me.generation is not None and me.generation.number == generation
