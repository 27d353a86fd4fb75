"""The constants of a run that decisions depend on."""

import msgspec

FRESH = -1
"""Value of ``committed`` for a worker without any state."""

STORE = -2
"""In place of a worker's number: the checkpoint a run begins with, which has all state of round 0."""


REST_BLOCK = -1
"""In place of a block's number: the state that no block holds."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Equal on every worker.

    Args:
        virtual_ranks: V.
        blocks: number of blocks gradients are summed in.
        units: number of units, the rest included.
        unit_bytes: size of each unit's optimizer state.
        copies: the number of copies of each block of optimizer state; None: every worker has all.
        fetch_bytes: optimizer state that a joiner fetches at most during one step; at least one unit.
        digest_every: training steps between two digests of the state; 0: only when the run settles.
        compared: a second copy of each block is digested too, because copies must be equal to the bit.
        checkpoints: the state is checkpointed when the run settles, and on request.
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
        """All units, the rest included."""
        return frozenset(range(self.units))

    @property
    def rest(self) -> int:
        """The last unit: values without optimizer state that every worker keeps current once it has them."""
        return self.units - 1
