"""The constants of a run on which decisions depend."""

import msgspec

FRESH = -1
"""The value of ``committed`` for a worker without any state."""

STORE = -2
"""In place of a worker's number: the checkpoint of the run's start, which has all state of round 0."""


REPLICATED_BLOCK = -1
"""In place of a block's number: the replicated state, which no block holds."""


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
        checkpoints: the run takes checkpoints when it settles, and on request.
    """

    virtual_ranks: int
    blocks: int
    units: int
    unit_bytes: tuple[int, ...]
    copies: int | None = None
    fetch_bytes: int = 16 << 20
    digest_every: int = 0
    compared: bool = False
    checkpoints: bool = False

    @property
    def everything(self) -> frozenset[int]:
        """All units, the replicated state included."""
        return frozenset(range(self.units))

    @property
    def replicated_unit(self) -> int:
        """The last unit, the replicated state: every worker keeps it current once it has it."""
        return self.units - 1
