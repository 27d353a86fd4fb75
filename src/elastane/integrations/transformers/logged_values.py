"""The numbers of a Trainer that are the same on every worker: of its logs, and of all microbatches."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

LONGEST_NAME = 64
OF_ONE_PROCESS = re.compile(r"_(runtime|per_second|preparation_time)\Z|_mem_(cpu|gpu)_|^before_init_mem_")
"""Times and memory differ between workers; the ledger has the times of each step."""


def select_shared_values(logs: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a log that do not depend on the worker."""
    return {
        name: float(value)
        for name, value in logs.items()
        if isinstance(value, int | float) and not OF_ONE_PROCESS.search(name)
    }


def name_for_ledger(name: str) -> str:
    """Return a name of a log as an identifier: other characters, such as a slash, become underscores."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return (text if text[:1].isalpha() else f"_{text}")[:LONGEST_NAME]


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
        """Add numbers of all microbatches, in order, of a step (``train``) or of an evaluation (``eval``)."""

    def export(self) -> Any:
        """Return the collection as JSON, for a worker that joins."""
        return None

    def restore(self, exported: Any) -> None:
        """Restore the result of `export` on another worker."""
