"""Outer optimizers: they step the model once in a round, by the mean of what its virtual ranks have changed.

``run.prepare`` takes any function that builds an optimizer of torch from groups of parameters, such as
``functools.partial(torch.optim.SGD, lr=1.0)``, which averages the models. `Nesterov` is the usual one.
"""

from typing import Any

import msgspec
from torch import optim


class Nesterov(msgspec.Struct, frozen=True):
    """SGD with Nesterov's momentum, as DiLoCo has it (Douillard et al., 2023, algorithm 1).

    Args:
        lr: the learning rate; 1 without momentum would average the models of the virtual ranks.
        momentum: above 0 and below 1.
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __call__(self, groups: list[dict[str, Any]]) -> optim.Optimizer:
        """Return the optimizer of these groups of parameters."""
        return optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=True)
