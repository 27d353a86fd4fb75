"""Optimizer state that belongs to no single parameter: attributes, and shared entries of ``state``."""

import copy
import functools
import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NoReturn

import msgspec
import torch
from torch import optim

from elastane.common.errors import BadInput
from elastane.run.worker.state.json_state import join_tensors, restore_types, split_tensors

NAME = "optimizer"

FURTHER_ATTRIBUTES = frozenset(
    {
        "step",  # a schedule wraps it
        "zero_grad",
        "_opt_called",
        "_warned_capturable_if_run_uncaptured",
        "_step_supports_amp_scaling",
        "_need_device_dtype_check_for_fused",
        "grad_scale",
        "found_inf",
        "fused",
    }
)
"""Attributes that torch gives some optimizers, or gives them later."""


class RefusedState(dict[Any, Any]):
    """A stand-in for the state of a sharded optimizer; it refuses every use by the script."""

    def _refuse(self, *_args: object) -> NoReturn:
        raise BadInput(
            "the script used optimizer.state, which the run holds in shards",
            means="with --copies N no worker has the state of whole parameters",
            do="run with --copies all; or save the state with run.checkpoint()",
        )

    __getitem__ = __setitem__ = __delitem__ = __contains__ = _refuse
    __iter__ = __len__ = _refuse
    get = keys = values = items = pop = setdefault = clear = update = _refuse  # type: ignore[assignment]


class SharedOptimizerState:
    """The shared state of one optimizer, which may be of the user's own class.

    Raises:
        BadInput: an attribute of the optimizer cannot be sent to a joining worker.
    """

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._optimizer = optimizer
        for name, value in self._find_attributes().items():
            if isinstance(value, optim.Optimizer):
                raise BadInput(
                    f"the optimizer has another optimizer in its attribute {name}",
                    means="a worker that joins would lack the state of the inner optimizer",
                    do="keep its state in self.state[parameter] of the optimizer given to run.prepare",
                )
            _describe(value, f"{NAME}.{name}", {})

    def describe(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return the state as JSON, ``{"attributes": ..., "state": ...}``, and the tensors it refers to.

        Raises:
            BadInput: a value in it cannot be sent to a joining worker.
        """
        tensors: dict[str, torch.Tensor] = {}
        attributes = {
            name: _describe(value, f"{NAME}.attributes.{name}", tensors)
            for name, value in self._find_attributes().items()
        }
        state = self._optimizer.state
        # A copy, because the reactor may be adding the state of parameters from other workers.
        entries = {} if isinstance(state, RefusedState) else dict(state)
        shared = {key: value for key, value in entries.items() if not _is_parameter(key)}
        return {"attributes": attributes, "state": _describe(shared, f"{NAME}.state", tensors)}, tensors

    def load(self, shared: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the result of `describe` on another worker or in an earlier attempt of the run."""
        for name, described in shared["attributes"].items():
            present = getattr(self._optimizer, name, None)
            setattr(self._optimizer, name, restore_types(present, join_tensors(described, tensors)))
        for key, state in join_tensors(shared["state"], tensors).items():
            present = self._optimizer.state.get(key, {})
            self._optimizer.state[key] = restore_types(present, state)

    def snapshot(self) -> "OptimizerSnapshot":
        """Copy everything that a step of the optimizer may change, the state of parameters included."""
        return OptimizerSnapshot(self._optimizer, self._find_attributes())

    def _find_attributes(self) -> dict[str, Any]:
        """Return the attributes that are state and that torch's own optimizers do not have."""
        return {
            name: value
            for name, value in vars(self._optimizer).items()
            if name not in _list_own_attributes() and not name.startswith("_optimizer_") and _is_state(value)
        }


class OptimizerSnapshot:
    """A copy of an optimizer's state at one moment."""

    def __init__(self, optimizer: optim.Optimizer, attributes: Mapping[str, Any]) -> None:
        self._optimizer = optimizer
        self._groups = [_copy_group(group) for group in optimizer.param_groups]
        self._state = {key: copy.deepcopy(value) for key, value in optimizer.state.items()}
        self._names = set(vars(optimizer))
        self._attributes = {name: copy.deepcopy(value) for name, value in attributes.items()}

    def restore(self) -> dict[Any, Any]:
        """Restore the optimizer.

        Returns:
            The state of parameters that the restore has replaced; the caller may reuse its memory.
        """
        spare = dict(self._optimizer.state)
        for group, saved in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.clear()
            group.update({key: _restore_tensor(value) for key, value in saved.items()})
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        vars(self._optimizer).update(self._attributes)
        for name in set(vars(self._optimizer)) - self._names - _list_own_attributes():
            delattr(self._optimizer, name)
        return spare


class _SavedTensor(msgspec.Struct, frozen=True):
    """A tensor in a group, to which a schedule may refer, and a copy of its elements."""

    tensor: torch.Tensor
    elements: torch.Tensor


def _copy_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a group of parameters: also its lists and dicts, which a step may change in place."""
    return {
        key: list(value)
        if key == "params"
        else _SavedTensor(value, value.detach().clone())
        if isinstance(value, torch.Tensor)
        else copy.deepcopy(value)
        for key, value in group.items()
    }


@torch.no_grad()
def _restore_tensor(saved: Any) -> Any:
    return saved.tensor.copy_(saved.elements) if isinstance(saved, _SavedTensor) else saved


def _is_parameter(key: object) -> bool:
    return isinstance(key, torch.Tensor)


def _is_state(value: object) -> bool:
    """Return False for values that never change, and for parameters, which belong to the model."""
    if callable(value) or isinstance(
        value, ModuleType | torch.dtype | torch.device | logging.Logger | optim.lr_scheduler.LRScheduler
    ):
        return False
    if isinstance(value, torch.nn.Parameter):
        return False
    if isinstance(value, list | tuple | set) and value:
        return any(_is_state(entry) for entry in value)
    if isinstance(value, Mapping) and value:
        return any(_is_state(entry) for entry in value.values())
    return True


def _describe(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    try:
        return split_tensors(value, name, tensors)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"{name} cannot be given to a joining worker: {error}",
            means="only numbers, strings, lists, dicts, tensors and None can be sent; nothing is unpickled",
            do="keep other objects out of the optimizer, or build them from numbers in its step()",
        ) from error


@functools.cache
def _list_own_attributes() -> frozenset[str]:
    """Return the attributes that torch gives every optimizer.

    Its first optimizer makes torch load the compiler where nothing postpones it, so no import builds one.
    """
    return FURTHER_ATTRIBUTES | set(vars(optim.Optimizer([torch.nn.Parameter(torch.zeros(1))], {})))
