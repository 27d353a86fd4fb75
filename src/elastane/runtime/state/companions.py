"""Modules that a script uses beside the one it has prepared: a teacher, a target network.

Every worker makes them by running the script. As long as they stay as they are, that is enough. One that the
script changes would be another one in a worker that joins, unless the run keeps it.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from elastane.api.errors import BadInput


class Companions:
    """Modules with tensors of their own that were called in a rehearsal and are not part of the model.

    Args:
        model: of the run.
        kept: the modules that the run keeps.
    """

    def __init__(self, model: nn.Module, kept: Callable[[], Iterable[nn.Module]]) -> None:
        self._model, self._kept = model, kept
        self._seen: weakref.WeakKeyDictionary[nn.Module, list[tuple[int, int]]] = weakref.WeakKeyDictionary()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around a rehearsal: note the modules that are called."""
        called: dict[int, nn.Module] = {}

        def note(module: nn.Module, _inputs: Any) -> None:  # noqa: ANN401 - whatever it is called with
            called[id(module)] = module

        hook = register_module_forward_pre_hook(note)
        try:
            yield
        finally:
            hook.remove()
        mine = {id(module) for module in self._model.modules()}
        for module in called.values():
            # The parts of a model that a wrapper of it calls are part of the model too.
            if id(module) not in mine and not any(id(part) in mine for part in module.modules()):
                self._seen.setdefault(module, _counts(module))

    def check(self) -> None:
        """Find a module that was changed since the rehearsal.

        Raises:
            BadInput: there is one, and the run does not keep it.
        """
        kept = {id(part) for module in self._kept() for part in module.modules()}
        for module, before in self._seen.items():
            if _counts(module) != before and id(module) not in kept:
                raise BadInput(
                    f"a module beside the prepared one ({type(module).__name__}) was changed in the run",
                    means="the loop over a step uses it, and a worker that joins would have another one",
                    do="keep it: run.keep['target'] = module, and change it between the steps; or make it "
                    "part of the model of run.prepare; a constant one with batch norm needs module.eval()",
                )


def _counts(module: nn.Module) -> list[tuple[int, int]]:
    """Where the tensors of a module lie, and autograd's counts of their changes in place."""
    tensors: list[torch.Tensor] = [*module.parameters(), *module.buffers()]
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]  # noqa: SLF001 - what torch names it
