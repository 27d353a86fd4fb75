"""Numbers of single microbatches that all workers need, such as losses of which a script takes a mean."""

from collections.abc import Iterator, Mapping

import torch

from elastane.common.errors import BadInput
from elastane.run.worker.values import describe_value, to_number

PREFIX = "gathered "
"""Names of other values are identifiers, so none begins like this."""


class GatheredValues(Mapping[str, tuple[float, ...]]):
    """Numbers of each microbatch by name; after the iteration every worker has those of all microbatches.

    The numbers of a name are in the order of the microbatches, in fp64, and the same on every worker. A
    microbatch that adds no number of a name has none in its list.
    """

    def __init__(self) -> None:
        self._own: dict[str, float] | None = None
        self._all: dict[str, tuple[float, ...]] = {}

    def __getitem__(self, name: str) -> tuple[float, ...]:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, **values: float | torch.Tensor) -> None:
        """Add numbers of the current microbatch.

        Raises:
            BadInput: a value is not a number, a name has one already, or no microbatch is current.
        """
        if self._own is None:
            raise BadInput(
                "gathered.add was called outside the loop over the microbatches",
                means="a gathered number belongs to a microbatch",
                do="call it in the loop: for batch in step: step.gathered.add(...)",
            )
        for name, value in values.items():
            number = to_number(value)
            if number is None or name in self._own:
                fault = "a second number" if number is not None else describe_value(value)
                raise BadInput(
                    f"gathered.add({name}=...) was given {fault}",
                    means="each microbatch has one number of each name",
                    do=f"pass a number or a tensor of one element, once: gathered.add({name}=loss.item())",
                )
            self._own[name] = number

    def begin(self) -> None:
        """Begin a microbatch."""
        self._own = {}

    def take(self, virtual_rank: int) -> dict[str, float]:
        """End the microbatch of a virtual rank; return its terms of the sums of the round."""
        own, self._own = self._own, None
        return {f"{PREFIX}{virtual_rank} {name}": number for name, number in (own or {}).items()}

    def complete(self, sums: Mapping[str, float]) -> None:
        """Read the numbers of all microbatches from the sums of the round."""
        found: dict[str, dict[int, float]] = {}
        for key, number in sums.items():
            if key.startswith(PREFIX):
                rank, _, name = key.removeprefix(PREFIX).partition(" ")
                found.setdefault(name, {})[int(rank)] = number
        self._all = {
            name: tuple(numbers[rank] for rank in sorted(numbers)) for name, numbers in sorted(found.items())
        }


def drop_gathered(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the sums without the numbers of single microbatches."""
    return {name: number for name, number in sums.items() if not name.startswith(PREFIX)}
