"""What an elastic training function commits, restores and synchronises."""

import copy
import io
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from elastane.common.errors import BadInput
from elastane.integrations.horovod.collectives import Max, allreduce
from elastane.integrations.horovod.elastic.handover import Commit, Handover
from elastane.integrations.horovod.elastic.sampler import ElasticSampler
from elastane.integrations.horovod.parameters import allgather_object, broadcast_object
from elastane.integrations.horovod.world import HostsUpdatedInterrupt, rank

Part = nn.Module | Optimizer | ElasticSampler
"""An object whose ``state_dict`` is a part of the state."""


class ElasticState(ABC):
    """The base of states: commits, reset callbacks, and the check for a change of size.

    A class of a script derives from `ObjectState` or `TorchState`: their commits reach the processes of the
    next size.
    """

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], object]] = []
        self._handover = Handover(None)
        self._commits = 0

    def register_reset_callbacks(self, callbacks: list[Callable[[], object]]) -> None:
        """Call these functions, without arguments, after each change of the number of processes."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to a new number of processes."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """Do what a kind of state needs after a change of size, before the callbacks; nothing by default."""
        return

    def commit(self) -> None:
        """Save the state, then check whether the number of processes changes. All processes call it alike.

        Raises:
            HostsUpdatedInterrupt: it changes; `elastic.run` handles it.
            HorovodInternalError: another process has ended.
        """
        self.gather()
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise `HostsUpdatedInterrupt`, in all processes at once, if the number of processes changes."""
        announced = torch.tensor([int(self._handover.stop_announced)])
        if int(allreduce(announced, op=Max)):
            raise HostsUpdatedInterrupt

    def gather(self) -> None:
        """Collect what each process knows alone; nothing by default."""
        return

    @abstractmethod
    def save(self) -> None:
        """Save the state, so that `restore` returns to it.

        Raises:
            BadInput: a value cannot be handed over to other processes.
        """

    @abstractmethod
    def restore(self) -> None:
        """Return to the state that was saved last."""

    @abstractmethod
    def sync(self) -> None:
        """Take the state of the first process, in all processes."""

    def continue_from(self, handover: Handover) -> bool:
        """Return to the newest commit of earlier processes; return whether there was one."""
        self._handover = handover
        commit = handover.read_newest()
        if commit is None:
            return False
        self._commits = commit.number
        self.load_commit(commit.content)
        return True

    def load_commit(self, content: dict[str, Any]) -> None:
        """Return to a commit of earlier processes.

        Raises:
            BadInput: this kind of state has no commits that other processes can read.
        """
        raise build_state_error(self)

    def _keep(self, content: dict[str, Any]) -> None:
        self._commits += 1
        self._handover.set_latest(Commit(self._commits, content))


class ObjectState(ElasticState):
    """A state of plain values, which are its attributes.

    Args:
        bcast_object: sends a value of the first process to all.
        get_rank: returns the rank of this process.
        values: numbers, strings, tensors, and lists, tuples and dicts of them.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = rank,
        **values: Any,
    ) -> None:
        super().__init__()
        self._bcast_object, self._get_rank = bcast_object, get_rank
        self._names = tuple(values)
        self.__dict__.update(values)
        self._saved_values = _copy_plain(values)

    def save(self) -> None:
        self._saved_values = _copy_plain(self._read_values())
        self._keep({"values": self._saved_values})

    def restore(self) -> None:
        self.__dict__.update(_copy_plain(self._saved_values))

    def sync(self) -> None:
        values = self._read_values() if self._get_rank() == 0 else None
        self.__dict__.update(self._bcast_object(values))
        self.save()

    def _read_values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def load_commit(self, content: dict[str, Any]) -> None:
        self._saved_values = content["values"]
        self.restore()


class TorchState(ObjectState):
    """A state with models, optimizers and samplers beside plain values.

    Args:
        model: to train; None: the models are among the values.
        optimizer: of the model; None: the optimizers are among the values.
        values: further models, optimizers and samplers, and plain values, as attributes.
    """

    def __init__(
        self, model: nn.Module | None = None, optimizer: Optimizer | None = None, **values: Any
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **values}
        self._parts = {name: value for name, value in given.items() if isinstance(value, Part)}
        plain = {name: value for name, value in given.items() if name not in self._parts}
        super().__init__(
            **{name: value for name, value in plain.items() if value is not None or name in values}
        )
        self._saved_parts = _copy_parts(self._parts)
        self.__dict__.update(self._parts)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_parts", {}):
            self._parts[name] = value
        super().__setattr__(name, value)

    def gather(self) -> None:
        """Collect the samples that each process has trained on, so that a death loses none of them."""
        for sampler in self._list_samplers():
            for indices in allgather_object(sampler.processed_indices):
                sampler.record_indices(indices)

    def save(self) -> None:
        self._saved_values = _copy_plain(self._read_values())
        self._saved_parts = _copy_parts(self._parts)
        self._keep({"values": self._saved_values, "parts": self._saved_parts})

    def restore(self) -> None:
        super().restore()
        for name, part in self._parts.items():
            part.load_state_dict(copy.deepcopy(self._saved_parts[name]))

    def sync(self) -> None:
        # One message with everything: parameters differ between processes only after a restart.
        self.gather()
        own = _copy_parts(self._parts) if self._get_rank() == 0 else None
        received = self._bcast_object(own)
        for name, part in self._parts.items():
            part.load_state_dict(received[name])
        super().sync()

    def reset(self) -> None:
        for sampler in self._list_samplers():
            sampler.reset()

    def _list_samplers(self) -> list[ElasticSampler]:
        return [part for part in self._parts.values() if isinstance(part, ElasticSampler)]

    def load_commit(self, content: dict[str, Any]) -> None:
        missing = sorted(self._parts.keys() - content["parts"].keys())
        if missing:
            raise BadInput(
                f"the last commit has no {', '.join(missing)}",
                means="the script has changed since the commit was written",
                do="start a new run",
            )
        self._saved_parts = content["parts"]
        super().load_commit(content)


def check_state(state: ElasticState) -> None:
    """Check that the commits of a state reach the processes of the next size."""
    if type(state).load_commit is ElasticState.load_commit:
        raise build_state_error(state)


def build_state_error(state: ElasticState) -> BadInput:
    """Return the error for a state with commits that stay in its process."""
    return BadInput(
        f"{type(state).__name__} derives from hvd.elastic.State directly",
        means="a change of size starts new processes, and its save() hands nothing over to them",
        do="derive from hvd.elastic.ObjectState or hvd.elastic.TorchState, and call super().save()",
    )


def _copy_parts(parts: Mapping[str, Part]) -> dict[str, Any]:
    return {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}


def _copy_plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return a copy by the way that the values take to other processes."""
    copied = {}
    for name, value in values.items():
        file = io.BytesIO()
        try:
            torch.save(value, file)
            file.seek(0)
            copied[name] = torch.load(file, weights_only=True)
        except (pickle.PicklingError, pickle.UnpicklingError, AttributeError, TypeError) as error:
            raise BadInput(
                f"the state's {name} is a {type(value).__name__}, which cannot be handed over",
                means="others get numbers, strings, tensors, and lists, tuples and dicts of them",
                do="keep plain values in the state, or the state_dict() of the object",
            ) from error
    return copied
