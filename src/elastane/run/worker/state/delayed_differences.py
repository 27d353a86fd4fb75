"""The differences that a run of rounds exchanges one round later, while virtual ranks make the next steps.

In round r a virtual rank first hands over the difference that it has made in round r - 1, and then makes its
inner steps from the committed parameters. So the exchange runs under the inner steps, and parameters take a
difference one round after they would without the delay. A worker that has not made the difference itself,
because the rank was with another one, makes it again: the state has what the rank began with. The first
round hands over nothing, and the last one both its own difference and that of the round before, added.

The rule is that of the delayed outer gradients in Kale et al., "Eager Updates For Overlapped Communication
and Computation in DiLoCo" (2025), without the estimate from a worker's own difference: that would depend on
the ranks that each worker has computed.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.slot_memory import Sections


class RankBeginning(msgspec.Struct, frozen=True):
    """What the virtual ranks of the last round began with, while their differences are not handed over.

    Args:
        plain: the hyperparameters and the schedule, as `ReplicatedState` describes them.
        sections: the parameters, on the host.
    """

    plain: dict[str, Any]
    sections: Sections


class Difference(msgspec.Struct, frozen=True):
    """What a virtual rank has changed.

    Args:
        sections: those of parameters.
        touched: the parameters that had a gradient, in order.
    """

    sections: Sections
    touched: tuple[int, ...]

    def divide(self, layout: ModelLayout) -> Iterator[dict[int, torch.Tensor]]:
        """Yield the parts of parameters that had a gradient, by number, a block after the other."""
        for _, numbers in group_by_last_block(layout, self.touched):
            yield {number: layout.extents[number].view(self.sections) for number in numbers}

    @torch.no_grad()
    def add(self, other: "Difference") -> "Difference":
        """Return the sum of two differences."""
        sections = tuple(one + another for one, another in zip(self.sections, other.sections, strict=True))
        return Difference(sections, tuple(sorted({*self.touched, *other.touched})))


def group_by_last_block(layout: ModelLayout, numbers: tuple[int, ...]) -> Iterator[tuple[int, list[int]]]:
    """Yield each block of parameters, and those of some parameters that have no elements after it."""
    last: dict[int, list[int]] = {}
    for number in numbers:
        blocks = layout.parameter_blocks[number]
        last.setdefault(blocks[-1] if blocks else 0, []).append(number)
    for block in range(len(layout.blocks)):
        if not layout.is_buffers(block):
            yield block, last.get(block, [])
