"""The groups of gradients that are added together, and the order in which backward passes complete them.

A call of torch costs more than the addition of a small gradient. On a CPU a group stays in the cache until it
is added; on a device only memory limits it.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec


class GroupLimits(msgspec.Struct, frozen=True):
    """The limits of one group.

    Args:
        largest: bytes; a larger gradient is a group by itself.
        most: the number of gradients.
        enough: bytes; a group that has them is complete.
    """

    largest: int = sys.maxsize
    most: int = sys.maxsize
    enough: int = sys.maxsize


ON_HOST = GroupLimits(largest=1 << 18, most=32)
"""At most 8 MiB wait for others."""
ONE_BY_ONE = GroupLimits(most=1)
DURING_A_PASS = GroupLimits(enough=8 << 20)
"""On a device, while peers wait for the gradients: copies of groups this large use the whole bandwidth."""
UNLIMITED = GroupLimits()


def divide_gradients(
    numbers: Iterable[int], sizes: Sequence[int], limits: GroupLimits
) -> list[tuple[int, ...]]:
    """Divide gradients into groups, each in the given order; a group stands where its last gradient does.

    Args:
        numbers: the parameters, in the order in which their gradients are computed.
        sizes: the bytes of each parameter's gradient.
    """
    if limits == UNLIMITED:
        everything = tuple(numbers)
        return [everything] if everything else []
    groups: list[tuple[int, ...]] = []
    open_group: list[int] = []
    nbytes = 0
    for number in numbers:
        if sizes[number] > limits.largest:
            groups.append((number,))
            continue
        open_group.append(number)
        nbytes += sizes[number]
        if len(open_group) >= limits.most or nbytes >= limits.enough:
            groups.append(tuple(open_group))
            open_group, nbytes = [], 0
    if open_group:
        groups.append(tuple(open_group))
    return groups


class BackwardOrder:
    """The order of the last observed pass, and the parameters that do not fit into one order.

    A hook on a parameter costs a call of Python between two kernels. So hooks are few: each takes a group of
    gradients that are complete by then. A gradient that comes later than in the observed pass is taken after
    the pass.

    Args:
        sizes: the bytes of each parameter's gradient.
        limits: of the groups that hooks take.

    Attributes:
        in_parts: parameters that get a gradient in several parts, or in a backward pass inside another; these
            gradients are complete only after the pass.
    """

    def __init__(self, sizes: Sequence[int], limits: GroupLimits) -> None:
        self._sizes, self._limits = sizes, limits
        self._order: list[int] = []
        # Parameters of which the gradients are computed on another stream than the loss.
        self._apart: set[int] = set()
        self.in_parts: set[int] = set()
        self._parts: Counter[int] = Counter()

    def begin_pass(self) -> None:
        """Begin a pass that is observed."""
        self._parts.clear()

    def note(self, number: int, *, nested: bool, apart: bool) -> None:
        """Note a gradient, or a part of one, of the pass that is observed.

        Args:
            nested: it belongs to a backward pass inside the observed one.
            apart: it was computed on another stream.
        """
        self._parts[number] += 1
        if nested:
            self.in_parts.add(number)
        if apart:
            self._apart.add(number)

    def end_pass(self) -> None:
        """End the observed pass."""
        self.in_parts |= {number for number, parts in self._parts.items() if parts > 1}
        self._order = list(self._parts)

    def plan_groups(self) -> list[tuple[int, ...]]:
        """Return the groups of parameters that hooks take; the gradient of the last one completes a group."""
        grouped = [n for n in self._order if n not in self.in_parts and n not in self._apart]
        known = {*grouped, *self.in_parts}
        others = [(number,) for number in range(len(self._sizes)) if number not in known]
        return divide_gradients(grouped, self._sizes, self._limits) + others
