"""The division of samples into those for training and those for evaluations."""

import hashlib
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elastane.common.field_checks import make_field_error


class SampleSource(Protocol):
    """A map-style dataset with a fingerprint."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...
    def fingerprint(self) -> str: ...


class SampleSelection:
    """The samples at some positions of a dataset.

    Args:
        held: the positions that are held out, in order.
        is_held_out: select these positions; otherwise all others.
    """

    def __init__(self, samples: SampleSource, held: NDArray[np.int64], *, is_held_out: bool) -> None:
        self._samples, self._held, self._is_held_out = samples, held, is_held_out
        # For each held position, how many others come before it: sample i of the others is at i plus the
        # number of held positions before it.
        self._others_before = held - np.arange(len(held))

    def __len__(self) -> int:
        return len(self._held) if self._is_held_out else len(self._samples) - len(self._held)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return self._samples[self.find_position(index)]

    def find_position(self, index: int) -> int:
        """Return the position of a selected sample in the whole dataset."""
        if self._is_held_out:
            return int(self._held[index])
        return index + int(np.searchsorted(self._others_before, index, side="right"))

    def fingerprint(self) -> str:
        """Return a SHA-256 over the whole dataset's fingerprint and the selection."""
        selection = f"{self._samples.fingerprint()} {len(self._held)} {self._is_held_out}"
        return hashlib.sha256(selection.encode()).hexdigest()


def hold_out(samples: SampleSource, fraction: float) -> tuple[SampleSource, SampleSource | None]:
    """Divide samples into those for training, and a fraction for evaluations, spread evenly, at least one.

    The division depends on the number of samples and the fraction alone. A fraction of 0 holds out none.
    """
    if fraction == 0:
        return samples, None
    held = choose_held_out(len(samples), fraction)
    if len(held) >= len(samples):
        raise make_field_error(
            "data.held_out",
            f"{len(held)} of {len(samples)} samples are held out, and none remains for training",
            "use more data, or write 0 to evaluate nothing",
        )
    return (
        SampleSelection(samples, held, is_held_out=False),
        SampleSelection(samples, held, is_held_out=True),
    )


def choose_held_out(samples: int, fraction: float) -> NDArray[np.int64]:
    """Return the positions that are held out: in the middle of equal parts of the data."""
    count = min(samples, max(1, round(samples * fraction)))
    return (2 * np.arange(count, dtype=np.int64) + 1) * samples // (2 * count)
