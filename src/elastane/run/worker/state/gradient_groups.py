"""The division of gradients into groups that are added together.

A call of torch costs more than the addition of a small gradient. On a CPU a group stays in the cache until it
is added; on a device only memory limits it.
"""

import sys
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
