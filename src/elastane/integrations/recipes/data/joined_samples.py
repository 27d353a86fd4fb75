"""The samples of several files as one dataset."""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from elastane.integrations.recipes.data.held_out import SampleSource


class JoinedSamples:
    """A map-style dataset with the samples of several datasets, one after the other.

    Args:
        parts: the datasets, in order.
    """

    def __init__(self, parts: Sequence[SampleSource]) -> None:
        self._parts = tuple(parts)
        self._borders = (0, *accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._borders[-1]

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        part = bisect_right(self._borders, index) - 1
        return self._parts[part][index - self._borders[part]]

    def fingerprint(self) -> str:
        """Return a SHA-256 over the fingerprints of all parts."""
        return hashlib.sha256(" ".join(part.fingerprint() for part in self._parts).encode()).hexdigest()
