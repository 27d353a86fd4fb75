"""Tensors by name: of a model, of the files of a run, of a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from elastane.api.errors import BadInput

COMPILED = "_orig_mod"
"""Attribute under which ``torch.compile`` keeps the module that it wraps."""


@dataclass(frozen=True)
class TensorDescription:
    """Type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        elements = 1
        for length in self.shape:
            elements *= length
        return elements * self.dtype.itemsize


class NamedTensors(Protocol):
    """A source of tensors that is read one tensor at a time.

    Attributes:
        described: every stored tensor, in the order of the model.
        aliases: further names of stored tensors (tied weights), each to the stored one.
    """

    @property
    def described(self) -> Mapping[str, TensorDescription]: ...

    @property
    def aliases(self) -> Mapping[str, str]: ...

    def tensor(self, name: str) -> torch.Tensor:
        """Return the values of a stored tensor; a view if possible."""
        ...


class MemoryTensors:
    """A state dict.

    Args:
        entries: its tensors.
        tied: names that share one tensor are stored once, under the first of them.
    """

    def __init__(self, entries: Mapping[str, torch.Tensor], *, tied: bool = True) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self.aliases: dict[str, str] = {}
        first: dict[object, str] = {}
        for name, tensor in entries.items():
            # Two empty tensors may lie at the same address and are not tied.
            where = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            stored = first.setdefault(where, name) if tied and tensor.numel() else name
            if stored == name:
                self._tensors[name] = tensor.detach()
            else:
                self.aliases[name] = stored
        self.described = {
            name: TensorDescription(t.dtype, tuple(t.shape)) for name, t in self._tensors.items()
        }

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]


class ConvertedTensors:
    """Other tensors with their floating-point values in one data type; integers stay as they are."""

    def __init__(self, tensors: NamedTensors, dtype: torch.dtype) -> None:
        self._tensors, self._dtype = tensors, dtype
        self.aliases = tensors.aliases
        self.described = {
            name: TensorDescription(self._of(described.dtype), described.shape)
            for name, described in tensors.described.items()
        }

    def tensor(self, name: str) -> torch.Tensor:
        tensor = self._tensors.tensor(name)
        return tensor.to(self._of(tensor.dtype))

    def _of(self, dtype: torch.dtype) -> torch.dtype:
        return self._dtype if dtype.is_floating_point else dtype


class RenamedTensors:
    """Some of other tensors, under other names.

    Args:
        tensors: the others.
        names: new name to old name; an old name may be an alias.
        tied: new names of one tensor are stored once, under the first of them.
    """

    def __init__(self, tensors: NamedTensors, names: Mapping[str, str], *, tied: bool = True) -> None:
        self._tensors = tensors
        self._stored: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        first: dict[str, str] = {}
        for new, old in names.items():
            stored = tensors.aliases.get(old, old)
            if tied and stored in first:
                self.aliases[new] = first[stored]
            else:
                first[stored] = new
                self._stored[new] = stored
        self.described = {new: tensors.described[old] for new, old in self._stored.items()}

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors.tensor(self._stored[name])


def list_names(tensors: NamedTensors) -> list[str]:
    """Return every name, also those of tied tensors."""
    return [*tensors.described, *tensors.aliases]


def strip_compiled(name: str) -> str:
    """Return the name without what ``torch.compile`` adds to it, as ``torch.distributed.checkpoint`` does."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def read_state_dict(tensors: NamedTensors) -> dict[str, torch.Tensor]:
    """Return all names with their tensors, for ``nn.Module.load_state_dict``; tied names share one."""
    stored = {name: tensors.tensor(name) for name in tensors.described}
    return stored | {name: stored[first] for name, first in tensors.aliases.items()}


def require_tensors(entries: Mapping[str, Any], what: str) -> dict[str, torch.Tensor]:
    """Return the entries of a state dict if all are tensors.

    Raises:
        BadInput: one of them is no tensor, so no format of tensors can hold it.
    """
    for name, entry in entries.items():
        if not isinstance(entry, torch.Tensor):
            raise BadInput(
                f"{what} has {name}, a {type(entry).__name__}",
                means="files of tensors hold nothing else; without it the model would not be the trained one",
                do="keep it in a buffer (register_buffer) or out of get_extra_state",
            )
    return dict(entries)
