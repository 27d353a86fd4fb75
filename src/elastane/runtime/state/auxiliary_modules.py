"""Modules that a script has beside the one it has prepared: a teacher, a target network, an average.

Every worker makes them by running the script, which is enough as long as they do not change. A worker that
joins would have other values in one that the script changes, unless the run keeps it.
"""

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elastane.api.errors import BadInput
from elastane.runtime.state.change_detector import ChangeDetector, ChangeMark
from elastane.runtime.state.live_objects import find_live_objects


class _AuxiliaryModule:
    """One of them, with its tensors and how they were.

    Args:
        module: with parameters or persistent buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        tensors = module.state_dict(keep_vars=True).items()
        # Some entries of a state dict are no tensors, and a lazy one has no memory yet.
        self._tensors = {n: t for n, t in tensors if isinstance(t, torch.Tensor) and not is_lazy(t)}
        self._marker = ChangeDetector()
        self._before = self._marks()

    @property
    def changed(self) -> bool:
        return self._marks() != self._before

    def _marks(self) -> list[ChangeMark]:
        return [self._marker.mark(name, tensor) for name, tensor in self._tensors.items()]


class AuxiliaryModules:
    """Modules with tensors of their own that are not part of the model.

    Args:
        model: of the run.
        kept: the modules that the run keeps.
    """

    def __init__(self, model: nn.Module, kept: Callable[[], Iterable[nn.Module]]) -> None:
        self._model, self._kept = model, kept
        self._found: weakref.WeakKeyDictionary[nn.Module, _AuxiliaryModule] = weakref.WeakKeyDictionary()

    def find(self) -> None:
        """Find all modules there are when the run begins."""
        mine = {id(module) for module in self._model.modules()}
        modules = find_live_objects(nn.Module)
        parts = {id(part) for module in modules for part in module.children()}
        for module in modules:
            # What wraps the model, or is a part of another module, is no auxiliary of its own.
            if id(module) in parts or any(id(part) in mine for part in module.modules()):
                continue
            if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
                self._found[module] = _AuxiliaryModule(module)

    def check(self) -> None:
        """Find a module that was changed since the run began.

        Raises:
            BadInput: there is one, and the run does not keep it.
        """
        kept = {id(part) for module in self._kept() for part in module.modules()}
        for module, auxiliary in self._found.items():
            if id(module) not in kept and auxiliary.changed:
                raise BadInput(
                    f"a module beside the prepared one ({type(module).__name__}) was changed in the run",
                    means="a worker that joins would have another one",
                    do="keep it: run.keep['target'] = module, and change it between the steps; or make it "
                    "part of the model of run.prepare; a constant one with batch norm needs module.eval()",
                )
