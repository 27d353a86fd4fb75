"""The order in which a model's backward passes complete gradients, as the rehearsal observes it."""

from collections import Counter
from collections.abc import Sequence

from elastane.run.worker.state.gradient_groups import GroupLimits, divide_gradients


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
