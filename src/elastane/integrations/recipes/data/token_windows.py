"""The windows of a recipe's files of tokens."""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from elastane.common.errors import BadInput
from elastane.integrations.datasets import TokenFile
from elastane.integrations.recipes.data.files import DataFiles
from elastane.integrations.recipes.data.held_out import SampleSource
from elastane.integrations.recipes.data.spec import DataSpec

LOOKS = 64
"""The windows of a file that are checked."""


def open_token_windows(spec: DataSpec, files: DataFiles, vocabulary: int, context: int) -> SampleSource:
    """Return the windows of all files; no window has tokens of two files.

    Raises:
        BadInput: a file cannot be read, or its tokens are not those of the tokenizer.
    """
    parts = [TokenFile(file, context, dtype=spec.dtype) for file in files.files]
    for part in parts:
        check_token_range(part, vocabulary)
    return parts[0] if len(parts) == 1 else JoinedSamples(parts)


class JoinedSamples:
    """A map-style dataset with the samples of several datasets, one after the other."""

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


def check_token_range(windows: TokenFile, vocabulary: int) -> None:
    """Check windows that are spread evenly over a file of tokens; the model checks no token.

    Raises:
        BadInput: a token is outside the vocabulary.
    """
    for index in np.unique(np.linspace(0, len(windows) - 1, LOOKS).astype(np.int64)):
        inputs, targets, *_ = windows[int(index)]
        least, most = min(inputs.min(), targets[-1]), max(inputs.max(), targets[-1])
        if least < 0 or most >= vocabulary:
            raise BadInput(
                f"{windows.path} has the token {most if most >= vocabulary else least}",
                means=f"the tokenizer has the tokens 0 to {vocabulary - 1}, so another one made the file, "
                "or its data type is not data.dtype",
                do="name the tokenizer that made the file (data.tokenizer), or correct data.dtype",
            )
