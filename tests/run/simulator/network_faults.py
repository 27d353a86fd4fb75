"""The faults of the network between living processes, and the death that no peer sees."""

from typing import TypeAlias

import msgspec

from elastane.run.nouns.membership import WorkerId

SIDES = 6
"""A partition names its side by worker numbers modulo this, so that later workers are on a side too."""

LONGEST_DIAL_S = 3.0
"""A dial that gets no answer fails after at most this time, and a peer that falls silent is lost."""

SHORTEST_SILENCE_S = 1.0
"""No peer is taken for lost before it has been silent for this long."""


class BreakLink(msgspec.Struct, frozen=True, tag=True):
    """The connection of two living workers breaks for ever; ``a`` and ``b`` select them as ``which`` does.

    Args:
        at_s: the time of the break.
        a: selects a worker.
        b: selects one of the other workers.
        one_way: only what ``a`` sends is lost, and both workers notice it late.
    """

    at_s: float
    a: int
    b: int
    one_way: bool = False


class PartMesh(msgspec.Struct, frozen=True, tag=True):
    """The workers of one side lose all others, and all of them still reach the coordinator.

    Args:
        at_s: the time of the partition.
        side: the numbers, modulo `SIDES`, of the workers of one side.
        for_s: how long dials between the sides fail; the broken connections stay broken.
        one_way: only what the side sends is lost, and all workers notice it late.
    """

    at_s: float
    side: tuple[int, ...]
    for_s: float
    one_way: bool = False


class WallOff(msgspec.Struct, frozen=True, tag=True):
    """Workers that start in this time can never connect to some workers, but reach the coordinator.

    Args:
        at_s: the beginning of the time.
        from_: selects the workers behind the wall as ``which`` does; empty: all that live at the beginning.
        for_s: the length of the time.
    """

    at_s: float
    from_: tuple[int, ...]
    for_s: float


class CutControl(msgspec.Struct, frozen=True, tag=True):
    """A worker and the coordinator cannot reach each other; the worker still reaches its peers."""

    at_s: float
    which: int
    for_s: float


class SilentDeath(msgspec.Struct, frozen=True, tag=True):
    """A loss of power: the worker stops, and no connection closes."""

    at_s: float
    which: int


NetworkFault: TypeAlias = BreakLink | PartMesh | WallOff | CutControl | SilentDeath


def make_pair(a: WorkerId, b: WorkerId) -> frozenset[WorkerId]:
    return frozenset((a, b))
