"""What a child of a worker must not keep: peers notice a death because its connections end.

A loader process, or any other that the user's script forks, would hold them open after its worker has died.
"""

import os
from typing import Protocol
from weakref import WeakSet


class HoldsDescriptors(Protocol):
    """Something with descriptors of its own."""

    def close_in_child(self) -> None:
        """Close them in this process; the parent's stay as they are."""


_holders: WeakSet[HoldsDescriptors] = WeakSet()


def close_in_children(holder: HoldsDescriptors) -> None:
    """From now on every forked child begins by closing what belongs to ``holder``."""
    _holders.add(holder)


def _close() -> None:
    for holder in list(_holders):
        holder.close_in_child()


os.register_at_fork(after_in_child=_close)
