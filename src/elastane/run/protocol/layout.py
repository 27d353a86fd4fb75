"""The constants of a run on which decisions depend."""

from collections.abc import Sequence

import msgspec

from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.records import AbsentSites
from elastane.run.nouns.sites import AbsentRule
from elastane.run.nouns.spec import SpotChecks

FRESH = -1
"""The value of ``committed`` for a worker without any state."""

STORE = -2
"""In place of a worker's number: the checkpoint of the run's start, which has all state of round 0."""


REPLICATED_BLOCK = -1
"""In place of a block's number: the replicated state, which no block holds."""
LARGEST_BLOCK = 1 << 20
SMALLEST_BLOCK = 1 << 14
ALIGNMENT = 1 << 10


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The constants, equal on every worker.

    Args:
        virtual_ranks: V, the number of virtual ranks.
        blocks: the number of blocks in which gradients are summed.
        units: the number of units, the replicated state included.
        unit_bytes: the size of each unit's optimizer state.
        copies: the number of copies of each block of optimizer state; None: every worker has all.
        fetch_bytes: the most optimizer state that a joiner fetches during one step; at least one unit.
        digest_every: the training steps between two digests of the state; 0: only when the run settles.
        compared: workers also digest a second copy of each block, because copies must be equal bit for bit.
        began_at: the step of another run's state with which the run began; its digest is due; 0: none.
        checkpoints: the run takes checkpoints when it settles, and on request.
        spot_checks: how often another worker computes a virtual rank once more.
        together: the number of neighbouring virtual ranks that a worker computes at once, one in each of its
            processes; a power of two that divides V.
        rank_sites: the site of each virtual rank, where alone it may be computed; empty: they may move.
        absent: what a round does without one of these sites.
        replayed: the sites that rounds of an earlier run have left out, and those of this run leave out too.
    """

    virtual_ranks: int
    blocks: int
    units: int
    unit_bytes: tuple[int, ...]
    copies: int | None = None
    fetch_bytes: int = 16 << 20
    digest_every: int = 0
    compared: bool = False
    began_at: int = 0
    checkpoints: bool = False
    spot_checks: SpotChecks = "off"
    together: int = 1
    rank_sites: tuple[SiteName, ...] = ()
    absent: AbsentRule = "wait"
    replayed: tuple[AbsentSites, ...] = ()

    def find_replayed(self, step: int) -> tuple[SiteName, ...]:
        """Return the sites that a step leaves out, because that of an earlier run has done so."""
        return next((one.sites for one in self.replayed if one.first <= step <= one.last), ())

    @property
    def may_skip(self) -> bool:
        """Whether rounds may leave out the virtual ranks of absent sites."""
        return bool(self.rank_sites) and self.absent == "skip"

    @property
    def everything(self) -> frozenset[int]:
        """All units, the replicated state included."""
        return frozenset(range(self.units))

    @property
    def replicated_unit(self) -> int:
        """The last unit, the replicated state: every worker keeps it current once it has it."""
        return self.units - 1


# -- blocks: fixed slices of the state. Their borders never depend on the number of workers --------------


class Block(msgspec.Struct, frozen=True):
    """Elements ``[start, stop)`` of one section of the flat state.

    Args:
        section: the number of the flat buffer: one per data type and parameter group.
        start: the first element.
        stop: one past the last element.
    """

    section: int
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


def cut_blocks(sections: Sequence[int]) -> tuple[Block, ...]:
    """Cut sections of the given numbers of elements into blocks of about a sixteenth of the state.

    A block has at least 2**14 and at most 2**20 elements. 4 MiB of fp32 are large enough that the messages
    for a block cost far less than its sum, and small enough to travel during the backward pass. Borders are
    multiples of 2**10 elements, so vector kernels get the same alignment in every division.
    """
    total = sum(sections)
    size = min(max(-(-total // 16), SMALLEST_BLOCK), LARGEST_BLOCK)
    size = -(-size // ALIGNMENT) * ALIGNMENT
    return tuple(
        Block(section, start, min(start + size, elements))
        for section, elements in enumerate(sections)
        for start in range(0, elements, size)
    )
