"""Token files: windows of a fixed length from a memory-mapped file."""

import hashlib
import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from elastane.common.errors import BadInput

Tokens: TypeAlias = NDArray[np.int64]
LOOKS, LOOK_BYTES = 16, 1 << 16


class TokenFile:
    """Consecutive windows of a memory-mapped token file; targets are the inputs one token further.

    A sample is ``(inputs, targets)``, both int64 of shape ``(length,)``. With a ``separator`` it is
    ``(inputs, targets, documents)``, where positions of one document have the same number, from 0, for masks
    that keep attention inside a document. The last tokens that do not fill a window are left out.

    Args:
        path: a ``.npy`` file with one dimension, or a file of raw tokens in native byte order.
        length: the number of tokens per window.
        dtype: the data type of raw tokens; None: uint16. A ``.npy`` file has its own.
        separator: the token at the end of each document; None: samples have no document numbers.
        source: names the tokens in errors; None: the path.

    Raises:
        BadInput: the file cannot be read as tokens, or is shorter than a window.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        length: int,
        *,
        dtype: DTypeLike | None = None,
        separator: int | None = None,
        source: str | None = None,
    ) -> None:
        if length < 1:
            raise BadInput(
                f"TokenFile was given an invalid length: {length}",
                means="a window has one token or more",
                do="pass length of 1 or more",
            )
        self.path, self.length, self.separator = Path(path), length, separator
        self._dtype = np.dtype(dtype or np.uint16)
        self._tokens = self._map_file()
        self.tokens = len(self._tokens)
        if self.tokens <= length:
            raise BadInput(
                f"{source or self.path} has {self.tokens} tokens",
                means=f"a window takes {length}, and its last target one more",
                do="choose a smaller length (in a recipe batch.context), or a file with more tokens",
            )

    def __len__(self) -> int:
        return (self.tokens - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tokens, ...]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        start = index * self.length
        window = self._tokens[start : start + self.length + 1].astype(np.int64)
        inputs, targets = window[:-1], window[1:]
        if self.separator is None:
            return inputs, targets
        ends = inputs == self.separator
        # The separator belongs to the document it ends.
        return inputs, targets, np.cumsum(ends) - ends

    def fingerprint(self) -> str:
        """Return a SHA-256 over the settings of windows and over pieces spread evenly over the file."""
        size = self.path.stat().st_size
        sha = hashlib.sha256(f"{self._tokens.dtype} {self.length} {self.separator} {size}".encode())
        with self.path.open("rb") as file:
            for look in range(LOOKS):
                file.seek(max(0, size - LOOK_BYTES) * look // (LOOKS - 1))
                sha.update(file.read(LOOK_BYTES))
        return sha.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        # A pickled memory map would become the whole file.
        return {name: value for name, value in self.__dict__.items() if name != "_tokens"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tokens = self._map_file()

    def _map_file(self) -> NDArray[Any]:
        if self.path.is_file() and not self.path.stat().st_size:
            return np.empty(0, self._dtype)
        try:
            tokens: NDArray[Any] = (
                np.load(self.path, mmap_mode="r")
                if self.path.suffix == ".npy"
                else np.memmap(self.path, self._dtype, mode="r")
            )
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{self.path} cannot be read as tokens: {error}",
                means="it has no tokens to train on",
                do=f"check the path, and that it is .npy or raw tokens of dtype {self._dtype}",
            ) from error
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise BadInput(
                f"{self.path} holds {tokens.dtype} of shape {tokens.shape}",
                means="a token file is a one-dimensional array of integers",
                do="save the tokens as such an array",
            )
        return tokens
