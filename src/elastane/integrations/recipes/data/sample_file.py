"""Samples as files of tokens, which are written once and mapped into memory."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from elastane.integrations.recipes.data.conversation import TokenSequence

IGNORED = -100
"""The target of a position that has nothing to learn, as in PyTorch's cross entropy."""
Positions: TypeAlias = NDArray[np.int64]


class SampleCounts(msgspec.Struct, frozen=True):
    """What became of the rows of the data.

    Args:
        samples: the samples for training and for evaluations.
        truncated: those of them that were cut to the context.
        dropped: rows that were left out because they are longer than the context.
    """

    samples: int
    truncated: int
    dropped: int
    context: int

    def describe(self) -> str:
        """Return a sentence for the terminal."""
        found = f"{self.samples:,} samples"
        if self.truncated:
            found += f", {self.truncated:,} of them truncated to {self.context:,} tokens"
        return f"{found}, {self.dropped:,} longer ones dropped" if self.dropped else found


class SampleFile:
    """A map-style dataset of samples that are mapped into memory.

    A sample has two arrays for each of its sequences: the inputs, and the targets, which are the inputs one
    token further, or `IGNORED` where nothing is learned.

    Args:
        folder: that `write_samples` has written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts = msgspec.json.decode((folder / "counts.json").read_bytes(), type=SampleCounts)
        self._map()

    def __len__(self) -> int:
        return self.counts.samples

    def __getitem__(self, index: int) -> tuple[Positions, ...]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        arrays: list[Positions] = []
        for sequence in range(index * self._width, (index + 1) * self._width):
            start, stop = self._borders[sequence], self._borders[sequence + 1]
            tokens = self._tokens[start:stop].astype(np.int64)
            targets = np.where(self._learned[start + 1 : stop], tokens[1:], IGNORED)
            arrays += [tokens[:-1], targets]
        return tuple(arrays)

    def fingerprint(self) -> str:
        """Return the key of the content, which the name of the folder has."""
        return self.folder.name

    def __getstate__(self) -> dict[str, Any]:
        # A pickled memory map would become the whole file.
        return {"folder": self.folder, "counts": self.counts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()

    def _map(self) -> None:
        self._tokens = np.memmap(self.folder / "tokens.bin", np.uint32, mode="r")
        self._learned = np.memmap(self.folder / "learned.bin", np.bool_, mode="r")
        self._borders = np.memmap(self.folder / "borders.bin", np.int64, mode="r")
        self._width = (len(self._borders) - 1) // self.counts.samples


def write_samples(folder: Path, samples: Iterable[tuple[TokenSequence, ...]]) -> int:
    """Write the files of a `SampleFile`, without its counts; return the number of samples."""
    number = border = 0
    with (
        (folder / "tokens.bin").open("wb") as tokens,
        (folder / "learned.bin").open("wb") as learned,
        (folder / "borders.bin").open("wb") as borders,
    ):
        borders.write(np.array([0], np.int64).tobytes())
        for sample in samples:
            number += 1
            for sequence in sample:
                border += len(sequence.tokens)
                tokens.write(np.array(sequence.tokens, np.uint32).tobytes())
                learned.write(np.array(sequence.learned, np.bool_).tobytes())
                borders.write(np.array([border], np.int64).tobytes())
    return number


def write_counts(folder: Path, counts: SampleCounts) -> None:
    """Write what became of the rows beside the samples."""
    (folder / "counts.json").write_bytes(msgspec.json.encode(counts))
