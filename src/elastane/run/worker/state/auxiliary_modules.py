"""Modules that a script uses beside the prepared one: a teacher, a target network, an average.

Every worker creates them by running the script, which is enough as long as they do not change. If the script
changes one that is not in ``run.keep``, a worker that joins later has other values in it.
"""

import weakref
from collections.abc import Callable, Container, Iterable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elastane.common.errors import BadInput
from elastane.run.worker.state.change_detector import ChangeDetector, ChangeMark
from elastane.run.worker.state.live_objects import find_live_modules


class _AuxiliaryModule:
    """An auxiliary module with the marks of its tensors.

    Args:
        shared: ids of tensors that are not its own.
    """

    def __init__(self, module: nn.Module, shared: Container[int]) -> None:
        tensors = module.state_dict(keep_vars=True).items()
        # A state dict may have entries other than tensors, and a lazy tensor has no memory yet.
        self._tensors = {
            name: tensor
            for name, tensor in tensors
            if isinstance(tensor, torch.Tensor) and not is_lazy(tensor) and id(tensor) not in shared
        }
        self._detector = ChangeDetector()
        self._first_marks = self._read_marks()

    def is_changed(self) -> bool:
        return self._read_marks() != self._first_marks

    def _read_marks(self) -> list[ChangeMark]:
        return [self._detector.mark(name, tensor) for name, tensor in self._tensors.items()]


class AuxiliaryModules:
    """Modules with tensors of their own that are not part of the model.

    Args:
        list_kept: returns the modules in ``run.keep``.
    """

    def __init__(self, model: nn.Module, list_kept: Callable[[], Iterable[nn.Module]]) -> None:
        self._model, self._list_kept = model, list_kept
        self._auxiliary: weakref.WeakKeyDictionary[nn.Module, _AuxiliaryModule] = weakref.WeakKeyDictionary()

    def find(self) -> None:
        """Find all modules that exist when the run begins."""
        model_modules = {id(module) for module in self._model.modules()}
        # A layer that another one has replaced, as in quantization, may still have the tensors of the model.
        shared = {id(tensor) for tensor in (*self._model.parameters(), *self._model.buffers())}
        modules = find_live_modules()
        nested = {id(part) for module in modules for part in module.children()}
        for module in modules:
            # A wrapper of the model and a part of another module are not auxiliary modules of their own.
            if id(module) in nested or any(id(part) in model_modules for part in module.modules()):
                continue
            if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
                self._auxiliary[module] = _AuxiliaryModule(module, shared)

    def check(self) -> None:
        """Check that no module has changed since the run began."""
        kept_ids = {id(part) for module in self._list_kept() for part in module.modules()}
        for module, auxiliary in self._auxiliary.items():
            if id(module) not in kept_ids and auxiliary.is_changed():
                raise BadInput(
                    f"the script changed a module ({type(module).__name__}) beside the model of run.prepare",
                    means="a worker that joins later would have the unchanged one",
                    do="keep it: run.keep['target'] = module, and change it between the steps; or make it "
                    "part of the model of run.prepare; if it has batch norm and is constant, call "
                    "module.eval()",
                )
