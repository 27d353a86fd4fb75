"""Tensors in safetensors files, mapped into memory: nothing is read before it is asked for."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from elastane.api.errors import BadInput
from elastane.runtime.finished.named_tensors import Described
from elastane.runtime.finished.shards import INDEX, WHOLE
from elastane.runtime.finished.tensor_file import DTYPES

NAMED = {name: dtype for dtype, name in DTYPES.items()}


class StoredTensors:
    """All tensors of some safetensors files, in the order given; `NamedTensors`.

    Args:
        paths: of the files.
        order: names in the order wanted; without it, that of the files.

    Raises:
        BadInput: one is missing or damaged.
    """

    def __init__(self, paths: Iterable[Path], order: Iterable[str] | None = None) -> None:
        self._files: dict[str, Any] = {}
        self.metadata: dict[str, str] = {}
        self.described: dict[str, Described] = {}
        for path in paths:
            try:
                file: Any = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise BadInput(
                    f"{path} cannot be read: {error}",
                    means="the finished model is damaged or was moved in part",
                ) from error
            self.metadata |= file.metadata() or {}
            for name in file.keys():  # noqa: SIM118 - it is no dictionary
                piece = file.get_slice(name)
                self.described[name] = Described(NAMED[piece.get_dtype()], tuple(piece.get_shape()))
                self._files[name] = file
        if order is not None:
            self.described = {name: self.described[name] for name in order}
        self.aliases = {name: first for name, first in self.metadata.items() if first in self.described}

    def tensor(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._files[name].get_tensor(name)
        return found


def stored_model(folder: Path) -> StoredTensors | None:
    """The model whose marker lies in a folder; None without one.

    Raises:
        BadInput: it is damaged.
    """
    if (folder / WHOLE).is_file():
        return StoredTensors([folder / WHOLE])
    if (folder / INDEX).is_file():
        index = json.loads((folder / INDEX).read_bytes())["weight_map"]
        return StoredTensors([folder / name for name in dict.fromkeys(index.values())], order=index)
    return None
