"""Digests of a dataset and of its samples, which show a change between two workers or after a resume."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from elastane.run.protocol.sampling import derive_loading_key, mix
from elastane.run.worker.data.batch_sources import MapDataset
from elastane.run.worker.data.determinism import seed_everything, use_one_thread
from elastane.run.worker.exhaustion import runs_script

if TYPE_CHECKING:
    from hashlib import _Hash

LOOKED_AT = 4
SEEDED_AS_STEP = 0  # no real step has this number
SCALARS = {str, int, float, complex, bool}


@runs_script
def digest_dataset(dataset: MapDataset, seed: int) -> str:
    """Return a SHA-256 over length, type and a few samples at positions that the seed chooses.

    A dataset may have its own ``fingerprint``, a text or a method that returns one; Hugging Face's datasets
    have a ``_fingerprint``. Then the fingerprint replaces the samples.

    Raises:
        Exception: the dataset raised it.
    """
    sha = hashlib.sha256(f"{type(dataset).__qualname__} {len(dataset)}".encode())
    if (own := read_own_fingerprint(dataset)) is not None:
        sha.update(own.encode())
        return sha.hexdigest()
    with use_one_thread():
        for place in range(LOOKED_AT):
            index = mix(mix(seed & ((1 << 64) - 1)) ^ place) % len(dataset)
            # Augmentations draw the same random numbers in every process.
            seed_everything(derive_loading_key(seed, SEEDED_AS_STEP, place))
            _add_content(sha, index)
            _add_content(sha, dataset[index])
    return sha.hexdigest()


def digest_stream(stream: object, first: Sequence[Any]) -> str:
    """Return a SHA-256 over the type of a stream and its first samples, or its own fingerprint."""
    sha = hashlib.sha256(type(stream).__qualname__.encode())
    _add_content(sha, list(first) if (own := read_own_fingerprint(stream)) is None else own)
    return sha.hexdigest()


def read_own_fingerprint(dataset: object) -> str | None:
    """Return the dataset's own fingerprint; None: it has none."""
    own = getattr(dataset, "fingerprint", None)
    own = own() if callable(own) else own
    own = getattr(dataset, "_fingerprint", None) if own is None else own
    return None if own is None else str(own)


def hash_content(sample: Any) -> int:
    """Return a 64-bit hash of the content of a sample; types that are unknown count by their name only."""
    sha = hashlib.sha256()
    _add_content(sha, sample)
    return int.from_bytes(sha.digest()[:8], "little")


def _add_content(sha: "_Hash", value: Any) -> None:
    """Add the content of a sample; for an unknown type, only its name."""
    sha.update(f"<{type(value).__name__}>".encode())
    match value:
        case torch.Tensor():
            dense = value.detach().cpu().contiguous()
            sha.update(f"{dense.dtype} {tuple(dense.shape)}".encode())
            if dense.layout is torch.strided and not dense.is_quantized:
                sha.update(dense.reshape(-1).view(torch.uint8).numpy().tobytes())
        case np.ndarray():
            sha.update(f"{value.dtype} {value.shape}".encode())
            sha.update(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
        case bytes() | bytearray() | memoryview():
            sha.update(value)
        case str() | int() | float() | complex() | None | np.generic():
            sha.update(repr(value).encode())
        case Mapping():
            for key, inner in value.items():
                _add_content(sha, key)
                _add_content(sha, inner)
        case list() | tuple():
            _add_contents(sha, value)
        case _ if callable(getattr(value, "tobytes", None)):  # images
            sha.update(value.tobytes())
        case _ if dataclasses.is_dataclass(value):
            _add_contents(sha, (getattr(value, field.name) for field in dataclasses.fields(value)))
        case _:
            pass


def _add_contents(sha: "_Hash", values: Iterable[Any]) -> None:
    values = list(values)
    types = set(map(type, values))
    if len(types) == 1 and types <= SCALARS:
        # The same bytes as below, for long lists of tokens.
        name = f"<{types.pop().__name__}>"
        sha.update((name + name.join(map(repr, values))).encode())
        return
    for value in values:
        _add_content(sha, value)
