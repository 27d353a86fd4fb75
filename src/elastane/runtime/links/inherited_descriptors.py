"""Descriptors that a forked child of a worker closes: peers notice a death by the end of its connections.

A loader process, or any other process that the script forks, would hold them open after its worker has died.
"""

import os
from typing import Protocol
from weakref import WeakSet


class HoldsDescriptors(Protocol):
    """An object with descriptors of its own."""

    def close_in_child(self) -> None:
        """Close them in this process; the parent's stay as they are."""


_holders: WeakSet[HoldsDescriptors] = WeakSet()


def close_in_children(holder: HoldsDescriptors) -> None:
    """Have every child that is forked from now on close the descriptors of ``holder`` first."""
    _holders.add(holder)


def _close_inherited() -> None:
    for holder in list(_holders):
        holder.close_in_child()


os.register_at_fork(after_in_child=_close_inherited)
