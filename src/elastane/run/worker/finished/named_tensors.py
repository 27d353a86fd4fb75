"""Tensors by name, from a model, from the files of a run or from a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from elastane.common.errors import BadInput

COMPILED = "_orig_mod"
"""The attribute in which ``torch.compile`` keeps the wrapped module."""


@dataclass(frozen=True)
class TensorDescription:
    """The type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        elements = 1
        for length in self.shape:
            elements *= length
        return elements * self.dtype.itemsize


class NamedTensors(Protocol):
    """A source of tensors, which reads one tensor at a time.

    Attributes:
        descriptions: every stored tensor, in the order of the model.
        aliases: other names of stored tensors (tied weights), each with the stored name.
    """

    @property
    def descriptions(self) -> Mapping[str, TensorDescription]: ...

    @property
    def aliases(self) -> Mapping[str, str]: ...

    def read_tensor(self, name: str) -> torch.Tensor:
        """Return the values of a stored tensor; a view if possible."""
        ...


class MemoryTensors:
    """The tensors of a state dict.

    Args:
        tied: store a tensor with several names once, under the first name.
    """

    def __init__(self, entries: Mapping[str, torch.Tensor], *, tied: bool = True) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self.aliases: dict[str, str] = {}
        first: dict[object, str] = {}
        for name, tensor in entries.items():
            # Two empty tensors may have the same address without being tied.
            memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            stored = first.setdefault(memory, name) if tied and tensor.numel() else name
            if stored == name:
                self._tensors[name] = tensor.detach()
            else:
                self.aliases[name] = stored
        self.descriptions = {
            name: TensorDescription(t.dtype, tuple(t.shape)) for name, t in self._tensors.items()
        }

    def read_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]


class ConvertedTensors:
    """Other tensors, with floating-point values converted to one data type; integers stay unchanged."""

    def __init__(self, tensors: NamedTensors, dtype: torch.dtype) -> None:
        self._tensors, self._dtype = tensors, dtype
        self.aliases = tensors.aliases
        self.descriptions = {
            name: TensorDescription(self._choose_dtype(described.dtype), described.shape)
            for name, described in tensors.descriptions.items()
        }

    def read_tensor(self, name: str) -> torch.Tensor:
        tensor = self._tensors.read_tensor(name)
        return tensor.to(self._choose_dtype(tensor.dtype))

    def _choose_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self._dtype if dtype.is_floating_point else dtype


class RenamedTensors:
    """A selection of other tensors, under new names.

    Args:
        names: each new name with its old name, which may be an alias.
        tied: store a tensor with several new names once, under the first name.
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
        self.descriptions = {new: tensors.descriptions[old] for new, old in self._stored.items()}

    def read_tensor(self, name: str) -> torch.Tensor:
        return self._tensors.read_tensor(self._stored[name])


def list_names(tensors: NamedTensors) -> list[str]:
    """Return every name, those of tied tensors included."""
    return [*tensors.descriptions, *tensors.aliases]


def strip_compiled(name: str) -> str:
    """Return the name without the parts that ``torch.compile`` adds, as torch's own checkpoints do."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def read_state_dict(tensors: NamedTensors) -> dict[str, torch.Tensor]:
    """Return the tensor of every name, for ``nn.Module.load_state_dict``; tied names share one tensor."""
    stored = {name: tensors.read_tensor(name) for name in tensors.descriptions}
    return stored | {name: stored[first] for name, first in tensors.aliases.items()}


def require_tensors(entries: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the entries of the state dict of the model if all are tensors.

    Raises:
        BadInput: an entry is not a tensor, so formats of tensors cannot hold it.
    """
    for name, entry in entries.items():
        if not isinstance(entry, torch.Tensor):
            raise BadInput(
                f"the model has {name}, a {type(entry).__name__}",
                means="files of tensors cannot hold it, so the written model would lack it",
                do="keep it in a buffer (register_buffer) or out of get_extra_state",
            )
    return dict(entries)
