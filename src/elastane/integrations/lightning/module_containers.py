"""A check that training steps add nothing to lists and dicts of the module: each worker would add its own."""

from collections import deque

from torch import nn

from elastane.common.errors import BadInput

CONTAINERS = (list, dict, set, deque)


class ModuleContainers:
    """The lengths of the lists, dicts and sets in attributes of a module.

    Args:
        module: the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._inherited = frozenset(vars(nn.Module()))
        self._lengths: dict[str, int] = {}

    def begin(self) -> None:
        """Begin a microbatch."""
        self._lengths = self._measure()

    def _measure(self) -> dict[str, int]:
        return {
            name: len(value)
            for name, value in vars(self._module).items()
            if name not in self._inherited and not name.startswith("_") and isinstance(value, CONTAINERS)
        }

    def check(self) -> None:
        """Check that the attributes are as long as before the microbatch.

        Raises:
            BadInput: a training step has added to one of them.
        """
        now = self._measure()
        grown = next((name for name, length in now.items() if length > self._lengths.get(name, 0)), None)
        if grown is not None:
            raise BadInput(
                f"training_step added to self.{grown}",
                means="each worker would have the values of its own microbatches there, and those of a "
                "rehearsal",
                do="log values with self.log, which gives every worker the mean over the step",
            )
