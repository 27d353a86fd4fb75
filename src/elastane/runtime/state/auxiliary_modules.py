"""Modules that a script uses beside the prepared one: a teacher, a target network, an average.

Every worker creates them by running the script, which is enough as long as they do not change. If the script
changes one that is not in ``run.keep``, a worker that joins later has other values in it.
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
    """An auxiliary module with the marks of its tensors.

    Args:
        module: a module with parameters or persistent buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        tensors = module.state_dict(keep_vars=True).items()
        # A state dict may have entries other than tensors, and a lazy tensor has no memory yet.
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
        model: the model of the run.
        kept: returns the modules in ``run.keep``.
    """

    def __init__(self, model: nn.Module, kept: Callable[[], Iterable[nn.Module]]) -> None:
        self._model, self._kept = model, kept
        self._found: weakref.WeakKeyDictionary[nn.Module, _AuxiliaryModule] = weakref.WeakKeyDictionary()

    def find(self) -> None:
        """Find all modules that exist when the run begins."""
        mine = {id(module) for module in self._model.modules()}
        modules = find_live_objects(nn.Module)
        parts = {id(part) for module in modules for part in module.children()}
        for module in modules:
            # A wrapper of the model and a part of another module are not auxiliary modules of their own.
            if id(module) in parts or any(id(part) in mine for part in module.modules()):
                continue
            if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
                self._found[module] = _AuxiliaryModule(module)

    def check(self) -> None:
        """Check that no module has changed since the run began.

        Raises:
            BadInput: a module that is not in ``run.keep`` has changed.
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
