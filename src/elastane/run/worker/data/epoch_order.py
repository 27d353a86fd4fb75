"""The order of the samples in each epoch, when the script chooses it."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from elastane.common.errors import BadInput
from elastane.run.worker.exhaustion import runs_script
from elastane.run.worker.values import describe_value

Order: TypeAlias = Callable[[int], Sequence[int]]
"""Takes the number of an epoch, from 0; returns each position of the dataset once."""

REMEMBERED = 2
"""Loading ahead crosses the border between two epochs."""


class EpochOrder:
    """The positions of a dataset in the order in which each epoch reads them.

    Args:
        order: the function of the script.
    """

    def __init__(self, order: Order, length: int) -> None:
        self._order, self._length = order, length
        self._digests: dict[int, str] = {}
        self._known: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}

    def find_indices(self, epoch: int, positions: range) -> list[int]:
        """Return the dataset indices at these positions of an epoch.

        Raises:
            BadInput: the script returned something else than an order of all samples.
        """
        if epoch not in self._known:
            while len(self._known) >= REMEMBERED:
                del self._known[min(self._known)]
            self._known[epoch] = self._read(epoch)
        found: list[int] = self._known[epoch][positions.start : positions.stop].tolist()
        return found

    def digest(self, epoch: int = 0) -> str:
        """Return a SHA-256 of the order of an epoch."""
        self.find_indices(epoch, range(0))
        if epoch not in self._digests:
            self._digests = {epoch: hashlib.sha256(self._known[epoch].tobytes()).hexdigest()}
        return self._digests[epoch]

    @runs_script
    def _read(self, epoch: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        given = self._order(epoch)
        try:
            indices = np.asarray(given)
        except (TypeError, ValueError):
            indices = np.empty(0)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise _build_error(epoch, describe_value(given), self._length)
        if len(indices) != self._length:
            raise _build_error(epoch, f"{len(indices)} positions", self._length)
        if indices.min() < 0 or indices.max() >= self._length:
            raise _build_error(epoch, "positions outside the dataset", self._length)
        repeated = self._length - np.count_nonzero(np.bincount(indices, minlength=self._length))
        if repeated:
            raise _build_error(epoch, f"{repeated} positions more than once", self._length)
        return indices.astype(np.int64)


def build_order_error(epoch: int) -> BadInput:
    """Return the error for an order that two processes of the run compute differently."""
    return BadInput(
        f"order({epoch}) does not return the same order in all processes of the run",
        means="a worker that joins, or a loader process, would read other samples than the workers before it",
        do="compute the order from the number of the epoch and constant data; if it depends on the model, "
        "compute it between two steps, store it in run.keep and let order read it there, with loaders=0",
    )


def check_order(order: object) -> None:
    """Refuse an order that is not a function."""
    if order is not None and not callable(order):
        raise BadInput(
            f"run.steps was given an invalid order: {describe_value(order)}",
            means="order is a function of the number of an epoch, because each epoch may have another order",
            do="pass order=lambda epoch: positions, or leave it out: the run then shuffles each epoch anew",
        )


def _build_error(epoch: int, found: str, length: int) -> BadInput:
    return BadInput(
        f"order({epoch}) returned {found}",
        means=f"an epoch reads each of the {length} samples of the dataset once",
        do=f"return a sequence with each of the numbers 0 to {length - 1} once, such as "
        "torch.randperm(length, generator=generator).tolist(); to draw with replacement, make the draws a "
        "dataset: Subset(dataset, list(WeightedRandomSampler(weights, draws, generator=generator)))",
    )
