"""The constants of a run that decisions depend on."""

import msgspec

FRESH = -1
"""``committed`` of a worker without any state."""

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
        copies: of the optimizer state of each block; None: all.
        fetch_bytes: optimizer state a joiner fetches at most under one step. One unit always goes.
        digest_every: training steps between two digests of the state; 0: only when the run settles.
        compared: of each block a second copy is digested too, as copies are meant to be the same to the bit.
        checkpoints: the state is kept when the run settles, and whenever somebody asks.
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
        """The last unit: what everyone keeps current once it has it; values without optimizer state."""
        return self.units - 1
