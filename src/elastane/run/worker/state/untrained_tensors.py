"""Tensors of a model that no block holds, such as frozen parameters and non-persistent buffers.

Every worker creates them by running the script, so they need not travel. If the script changes one between
two steps (a target network, a mask), it travels from then on like all other state.
"""

from collections.abc import Iterable, Mapping

import msgspec
import torch
from torch import nn

from elastane.common.errors import BadInput
from elastane.run.worker.state.change_detector import ChangeDetector, ChangeMark, digest_tensor
from elastane.run.worker.state.divided_tensors import count_changes, get_local
from elastane.run.worker.state.model_layout import ModelLayout


class UntrainedTensors:
    """The untrained tensors of one model.

    Args:
        layout: the layout of its parameters and of the buffers that blocks hold.

    Attributes:
        changed: names of tensors that the script has changed since its loop began.
    """

    def __init__(self, model: nn.Module, layout: ModelLayout) -> None:
        names = {parameter: name for name, parameter in model.named_parameters()}
        self._frozen = {names[parameter]: parameter for parameter in layout.frozen}
        self._divided = {extent.name for extent in layout.frozen_extents}
        in_blocks = {(id(module), name) for module, name in layout.buffers}
        self._buffers: dict[str, tuple[nn.Module, str]] = {}
        # Caches, as torch defines them: a forward pass may change them.
        self._caches: set[str] = set()
        for path, module in model.named_modules():
            for name, _ in module.named_buffers(recurse=False):
                full = f"{path}.{name}" if path else name
                if (id(module), name) not in in_blocks:
                    self._buffers[full] = (module, name)
                    if name in module._non_persistent_buffers_set:
                        self._caches.add(full)
        self._detector = ChangeDetector()
        self._marks: dict[str, ChangeMark] = {}
        self.changed: set[str] = set()

    def find_tensors(self) -> dict[str, torch.Tensor]:
        """Return all untrained tensors, by name; of divided ones the part of this process."""
        frozen = {name: get_local(parameter) for name, parameter in self._frozen.items()}
        buffers = {full: module._buffers.get(name) for full, (module, name) in self._buffers.items()}
        return {**frozen, **{full: buffer for full, buffer in buffers.items() if buffer is not None}}

    def find_changed_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that a joining worker must receive, by name."""
        return {name: tensor for name, tensor in self.find_tensors().items() if name in self.changed}

    def list_changed(self) -> list[str]:
        """Return the names of the tensors that the script has changed since its loop began, but no caches."""
        return sorted(self.changed - self._caches)

    def check_undivided(self, names: Iterable[str]) -> None:
        """Check that tensors which have changed are not divided among the processes of the worker.

        Raises:
            BadInput: one of them is.
        """
        if divided := sorted(self._divided.intersection(names)):
            raise BadInput(
                f"{divided[0]} was changed between two steps, and it is frozen and divided",
                means="each process of a worker has a part of it, and others would not get the change",
                do="change frozen parameters before run.prepare; or train them; or leave --processes out: a "
                "worker then is one process",
            )

    def remember(self) -> None:
        """Remember the present state of the tensors."""
        self._marks = {name: self._mark(name, tensor) for name, tensor in self.find_tensors().items()}

    def _mark(self, name: str, tensor: torch.Tensor) -> ChangeMark:
        mark = self._detector.mark(name, tensor)
        if name not in self._divided:
            return mark
        # Torch counts a change of the whole tensor there, and not in the part.
        return msgspec.structs.replace(mark, version=count_changes(self._frozen[name]))

    def find_changed(self, *, caches: bool) -> list[str]:
        """Return the names of the tensors that have changed since `remember`.

        Args:
            caches: include non-persistent buffers.
        """
        return [
            name
            for name, tensor in self.find_tensors().items()
            if (caches or name not in self._caches) and self._mark(name, tensor) != self._marks.get(name)
        ]

    @torch.no_grad()
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load what `find_changed_tensors` returned on another worker or in an earlier attempt of the run."""
        self.check_undivided(tensors)
        present = self.find_tensors()
        for full, tensor in tensors.items():
            target = present.get(full)
            if target is not None and (target.shape, target.dtype) == (tensor.shape, tensor.dtype):
                target.data.copy_(tensor)
            elif full in self._buffers:
                module, name = self._buffers[full]
                module._buffers[name] = tensor.clone()
        self.changed = set(tensors)
        self.remember()

    def restore_buffers(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore buffers from `copy_buffers`."""
        for full, copied in tensors.items():
            module, name = self._buffers[full]
            module._buffers[name] = copied

    def copy_buffers(self, *, caches_only: bool = False) -> dict[str, torch.Tensor]:
        """Return copies of the buffers, or of the non-persistent ones, which a forward pass may change."""
        wanted = self._caches if caches_only else self._buffers.keys()
        return {name: tensor.clone() for name, tensor in self.find_tensors().items() if name in wanted}

    def digest_tensors(self) -> dict[str, str]:
        """Return the XXH3-128 of each tensor, by name; tensors on a device only if they have changed."""
        return {
            name: digest_tensor(tensor)
            for name, tensor in self.find_tensors().items()
            if name not in self._caches and (tensor.device.type == "cpu" or name in self.changed)
        }
