"""Tensors in safetensors files, which are mapped into memory and read on demand."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.worker.finished.named_tensors import TensorDescription
from elastane.run.worker.finished.safetensors_files import DTYPES, INDEX, SINGLE_FILE

SHOWN_CHARACTERS = 100
DTYPES_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


class StoredTensors:
    """All tensors of some safetensors files, as `NamedTensors`.

    Args:
        order: the names in order; None: the order of the files.

    Raises:
        BadInput: a file is missing or damaged.
    """

    def __init__(self, paths: Iterable[Path], order: Iterable[str] | None = None) -> None:
        self._files: dict[str, Any] = {}
        self.metadata: dict[str, str] = {}
        self.descriptions: dict[str, TensorDescription] = {}
        for path in paths:
            try:
                with ConfinedDirectory(path.parent).open(path) as opened:
                    # The library takes names only; it maps the file, so this one may be closed.
                    file: Any = safe_open(f"/proc/self/fd/{opened.fileno()}", framework="pt")
            except (OSError, Malformed, SafetensorError) as error:
                raise _build_damage_error(f"{path} cannot be read: {error}") from error
            self.metadata |= file.metadata() or {}
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                piece = file.get_slice(name)
                if (dtype := DTYPES_BY_NAME.get(piece.get_dtype())) is None:
                    raise _build_damage_error(
                        f"{path}: {escape_line(name, SHOWN_CHARACTERS)} has a data type that no run trains"
                    )
                self.descriptions[name] = TensorDescription(dtype, tuple(piece.get_shape()))
                self._files[name] = file
        if order is not None:
            order = tuple(order)
            if missing := next((name for name in order if name not in self.descriptions), None):
                raise _build_damage_error(f"no file of the model holds {missing}")
            self.descriptions = {name: self.descriptions[name] for name in order}
        self.aliases = {name: first for name, first in self.metadata.items() if first in self.descriptions}

    def read_tensor(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._files[name].get_tensor(name)
        return found


def open_stored_model(folder: Path) -> StoredTensors | None:
    """Return the model in a folder; None: the folder has no marker of a model.

    Raises:
        BadInput: the model is damaged.
    """
    if (folder / SINGLE_FILE).is_file():
        return StoredTensors([folder / SINGLE_FILE])
    if (folder / INDEX).is_file():
        index = _read_index(folder / INDEX)
        return StoredTensors([folder / name for name in dict.fromkeys(index.values())], order=index)
    return None


class _Index(msgspec.Struct, frozen=True):
    """``model.safetensors.index.json``: the file of each tensor."""

    weight_map: dict[str, str]


_decode_index = Decoder[_Index](_Index)


def _read_index(path: Path) -> dict[str, str]:
    try:
        files = _decode_index(ConfinedDirectory(path.parent).read(path)).weight_map
    except (OSError, Malformed) as error:
        raise _build_damage_error(f"{path} cannot be read: {error}") from error
    if outside := next((name for name in files.values() if Path(name).name != name), None):
        raise _build_damage_error(
            f"{path} names a file outside the folder, {escape_line(outside, SHOWN_CHARACTERS)}"
        )
    return files


def _build_damage_error(what: str) -> BadInput:
    return BadInput(what, means="the finished model is damaged, or only a part of it was moved")
