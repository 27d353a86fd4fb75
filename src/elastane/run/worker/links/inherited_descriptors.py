"""Descriptors that a forked child of a worker closes, because peers notice a death by closed connections.

A loader, or any other process that the script forks, would keep them open after its worker has died.
"""

import os
from typing import Protocol
from weakref import WeakSet


class HoldsDescriptors(Protocol):
    """An object with descriptors of its own."""

    def close_in_child(self) -> None:
        """Close the descriptors in this process; those of the parent stay open."""


_holders: WeakSet[HoldsDescriptors] = WeakSet()


def close_in_children(holder: HoldsDescriptors) -> None:
    """Register a holder: every later forked child first closes the holder's descriptors."""
    _holders.add(holder)


def _close_inherited() -> None:
    for holder in list(_holders):
        holder.close_in_child()


os.register_at_fork(after_in_child=_close_inherited)
