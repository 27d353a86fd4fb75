"""The optimizer's state by the names of its parameters, and in the forms that other programs load.

The names are those in the flattened state dicts of ``torch.distributed.checkpoint``, such as
``state.layers.0.weight.exp_avg``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import decode_object
from elastane.run.worker.finished.named_tensors import MemoryTensors, NamedTensors, strip_compiled
from elastane.run.worker.state.training_state import TrainingState

PREFIX = "state."


@dataclass(frozen=True)
class OptimizerState:
    """The complete state of an optimizer after its last step.

    Args:
        tensors: the tensors, by names such as ``state.PARAMETER.ENTRY``.
        groups: the parameter groups, in order: hyperparameters, and the names of their ``params``.
        plain: the entries other than tensors, by names of the same form.
        kind: the name of the optimizer's class.
    """

    tensors: NamedTensors
    groups: tuple[Mapping[str, Any], ...]
    plain: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""

    def build_metadata(self) -> dict[str, str]:
        """Return the entries other than tensors, as the metadata of a safetensors file."""
        return {
            "format": "pt",
            "optimizer": self.kind,
            "param_groups": json.dumps(self.groups),
            "plain": json.dumps(self.plain, sort_keys=True),
        }

    def build_torch_state(self) -> dict[str, Any]:
        """Return the state for ``Optimizer.load_state_dict``, with parameters by number, in group order."""
        state: dict[int, dict[str, Any]] = {}
        groups, number = [], 0
        entries = self._group_by_parameter()
        for group in self.groups:
            names = group["params"]
            numbers = list(range(number, number + len(names)))
            number += len(names)
            state |= {n: entries[name] for n, name in zip(numbers, names, strict=True) if name in entries}
            groups.append({**_restore_tuples(group), "params": numbers, "param_names": names})
        return {"state": state, "param_groups": groups}

    def build_flat_state(self) -> dict[str, Any]:
        """Return the state for ``set_optimizer_state_dict`` with ``flatten_optimizer_state_dict``."""
        flat: dict[str, Any] = {name: self.tensors.read_tensor(name) for name in self.tensors.descriptions}
        for group in self.groups:
            for name in group["params"]:
                hyperparameters = _restore_tuples(group)
                flat |= {f"param_groups.{name}.{k}": v for k, v in hyperparameters.items() if k != "params"}
        return flat | dict(self.plain)

    def _group_by_parameter(self) -> dict[str, dict[str, Any]]:
        entries: dict[str, dict[str, Any]] = {}
        for name in self.tensors.descriptions:
            parameter, entry = name.removeprefix(PREFIX).rsplit(".", 1)
            entries.setdefault(parameter, {})[entry] = self.tensors.read_tensor(name)
        for name, value in self.plain.items():
            parameter, entry = name.removeprefix(PREFIX).rsplit(".", 1)
            entries.setdefault(parameter, {})[entry] = value
        return entries


def decode_optimizer_state(tensors: NamedTensors, metadata: Mapping[str, str]) -> OptimizerState:
    """Return the state from its tensors and its `OptimizerState.build_metadata`.

    Raises:
        BadInput: the metadata is not valid.
    """
    try:
        return OptimizerState(
            tensors,
            tuple(json.loads(metadata["param_groups"])),
            decode_object(metadata["plain"]),
            metadata["optimizer"],
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadInput(
            f"the metadata of optimizer.safetensors cannot be read: {escape_line(str(error))}",
            means="the optimizer's state is damaged, or another program wrote it",
        ) from error


def read_optimizer_state(state: TrainingState) -> OptimizerState:
    """Return the optimizer state of a worker that holds all of it.

    Raises:
        BadInput: the worker holds only its blocks.
    """
    if state.copies is not None:
        raise BadInput(
            f"with --copies {state.copies} no worker holds the whole optimizer state",
            means="no worker can write it beside the model",
            do="run with --copies all, or export it from a checkpoint: elastane checkpoint export RUN "
            "--format torch --optimizer",
        )
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, Any] = {}
    for unit, extent in enumerate(state.layout.extents):
        for key, entry in state.shards.read_state(unit).items():
            target = tensors if isinstance(entry, torch.Tensor) else plain
            target[f"{PREFIX}{strip_compiled(extent.name)}.{key}"] = entry
    return OptimizerState(
        MemoryTensors(tensors, tied=False), _describe_groups(state), plain, type(state.optimizer).__name__
    )


def encode_groups(state: TrainingState) -> bytes:
    """Return ``optimizer.json``: the class, and the groups with their present hyperparameters."""
    groups = _describe_groups(state)
    value = {"optimizer": type(state.optimizer).__name__, "groups": groups}
    # The script's own optimizer class may have hyperparameters of any type.
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2) + b"\n"


def _describe_groups(state: TrainingState) -> tuple[dict[str, Any], ...]:
    names = {parameter: strip_compiled(name) for name, parameter in state.model.named_parameters()}
    return tuple(
        {
            **{
                key: _to_number(value) for key, value in group.items() if key not in {"params", "param_names"}
            },
            "params": [names.get(parameter, "") for parameter in group["params"]],
        }
        for group in state.optimizer.param_groups
    )


def _to_number(value: object) -> object:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _restore_tuples(group: Mapping[str, Any]) -> dict[str, Any]:
    """Restore tuples such as ``betas``: JSON has only lists."""
    return {
        key: tuple(value) if isinstance(value, list) and key != "params" else value
        for key, value in group.items()
    }
