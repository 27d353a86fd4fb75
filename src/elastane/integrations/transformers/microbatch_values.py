"""Numbers that a subclass of the Trainer collects in microbatches, such as the metrics of ``trl``."""

from collections.abc import Mapping, Sequence
from typing import Any


class MicrobatchValues:
    """The interface of a collection of such numbers; a plain Trainer has none.

    Each worker computes other microbatches. So the numbers of each are taken after it, gathered on all
    workers, and added there in the order of the microbatches.
    """

    def begin(self) -> None:
        """Begin a microbatch."""

    def end(self) -> dict[str, float]:
        """Take the numbers of the microbatch that ends, by name, as if it had not been computed."""
        return {}

    def add(self, mode: str, values: Mapping[str, Sequence[float]]) -> None:
        """Add the numbers of all microbatches of a step or of an evaluation.

        Args:
            mode: ``train`` or ``eval``.
            values: by name, in the order of the microbatches.
        """

    def export(self) -> Any:
        """Return the collection as JSON, for a worker that joins."""
        return None

    def restore(self, exported: Any) -> None:
        """Restore the result of `export` on another worker."""
