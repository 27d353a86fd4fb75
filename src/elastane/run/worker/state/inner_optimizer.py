"""The optimizer of the script in a run of rounds: it steps inside each virtual rank, from the same state.

A virtual rank begins with the committed parameters and with the optimizer and the schedule as they are
between two rounds, makes its inner steps, and leaves nothing but the difference of the parameters. So it may
be computed by any worker, or twice.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import optim
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from elastane.common.errors import BadInput
from elastane.run.worker.exhaustion import runs_script
from elastane.run.worker.state.averaged_state import AveragedState
from elastane.run.worker.state.delayed_differences import Difference, group_by_last_block
from elastane.run.worker.state.difference_noise import DifferenceNoise
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.placement import Placement
from elastane.run.worker.state.shared_optimizer_state import OptimizerSnapshot, SharedOptimizerState
from elastane.run.worker.state.slot_memory import Sections
from elastane.run.worker.state.tensor_bytes import flatten_dense
from elastane.run.worker.state.wire_formats import WireFormat
from elastane.run.worker.values import describe_value

OuterOptimizer: TypeAlias = Callable[[list[dict[str, Any]]], optim.Optimizer]
"""Builds the optimizer that steps once in a round, of groups of parameters, such as `outer.Nesterov`."""


def avoid_zero(weight: float | torch.Tensor) -> float | torch.Tensor:
    """Return the sum of some weights, or 1 in place of 0: without any weight all that it divides is zero."""
    return weight + (weight == 0)


def build_outer(outer: OuterOptimizer, inner: optim.Optimizer) -> optim.Optimizer:
    """Return the outer optimizer, with the parameters in the groups of the inner one.

    Raises:
        BadInput: the function does not return a new optimizer of these groups.
    """
    groups = [list(group["params"]) for group in inner.param_groups]
    built = outer([{"params": parameters} for parameters in groups]) if callable(outer) else None
    if not isinstance(built, optim.Optimizer) or _list_ids(built) != _list_ids(inner):
        raise BadInput(
            f"run.prepare was given an invalid outer: {describe_value(outer)}",
            means="outer must build an optimizer of the groups of parameters that it gets",
            do="pass outer=elastane.outer.Nesterov(lr=0.7, momentum=0.9), or a function such as "
            "functools.partial(torch.optim.SGD, lr=1.0)",
        )
    return built


def _list_ids(optimizer: optim.Optimizer) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]


class InnerOptimizer:
    """The script's optimizer, its schedule and its clipping, for the inner steps of a virtual rank.

    Args:
        optimizer: the optimizer given to ``prepare``.
        scheduler: its schedule, which is stepped after each inner step, unless it needs a metric.
        clip_grad_norm: the largest norm of the gradient of an inner step; None: unlimited.
        placement: its arena has the committed parameters while inner steps change those of the model.
        averaged: the state with which each virtual rank begins; None: it begins without any.

    Attributes:
        wire: the format to which differences are rounded; None: they are not.
        delayed: rounds exchange differences one round later; see `delayed_differences`.
        drains: with the round that is applied now, all differences are handed over.
        noise: clips each difference and adds noise to it; None: differences are as they are.

    Raises:
        BadInput: the optimizer needs a closure.
    """

    def __init__(
        self,
        optimizer: optim.Optimizer,
        scheduler: LRScheduler | None,
        clip_grad_norm: float | None,
        layout: ModelLayout,
        placement: Placement,
        averaged: AveragedState | None = None,
    ) -> None:
        if isinstance(optimizer, optim.LBFGS):
            raise BadInput(
                "LBFGS evaluates the loss several times a step",
                means="an inner step has one forward and one backward pass",
                do="use an optimizer with a step() that needs no closure",
            )
        self.optimizer = optimizer
        self._scheduler = None if isinstance(scheduler, ReduceLROnPlateau) else scheduler
        self._clip_grad_norm = clip_grad_norm
        self._layout, self._placement = layout, placement
        self.averaged = averaged
        self.delayed = self.drains = False
        # The last difference of each virtual rank that this worker has computed, and its round.
        self._held: dict[int, tuple[int, Difference]] = {}
        # The parameters with which the present virtual rank began.
        self._begun: Sections = placement.arena.tensors
        self.wire: WireFormat | None = None
        self.noise: DifferenceNoise | None = None
        # The present virtual rank and its round; None: it is rehearsed.
        self._label: tuple[int, int] | None = None
        self._shared = SharedOptimizerState(optimizer)
        self._before: OptimizerSnapshot | None = None
        self._schedule_before: dict[str, object] = {}
        # The weights of the microbatches of the present inner step.
        self._weights: list[float | torch.Tensor | None] = []
        # Parameters that have had a gradient in the virtual rank.
        self._touched: set[int] = set()

    def begin_rank(self, label: tuple[int, int] | None = None, begun: Sections | None = None) -> None:
        """Begin a virtual rank: the model has the committed parameters, and the optimizer its first state.

        Args:
            label: the virtual rank and its round; None: it is rehearsed.
            begun: the parameters with which it begins; None: the committed ones.
        """
        self._touched.clear()
        self._weights, self._label = [], label
        self._before = self._shared.snapshot()
        if self.averaged is not None:
            self.averaged.lend()
        if self._scheduler is not None:
            self._schedule_before = copy.deepcopy(self._scheduler.state_dict())
        self._forget_gradients()
        self._begun = self._placement.arena.tensors if begun is None else begun
        if begun is not None:
            self._show(begun)

    @torch.no_grad()
    def _show(self, sections: Sections) -> None:
        """Copy parameters to the model."""
        trained = self._placement.values[: self._layout.parameter_sections]
        for values, there in zip(trained, sections, strict=False):
            values.copy_(there)

    @runs_script
    def backward(self, loss: torch.Tensor, share: float, weight: float | torch.Tensor | None) -> None:
        """Run the backward pass of a microbatch; gradients add up in ``.grad`` until the inner step.

        Args:
            share: the share of the microbatch in the samples of the inner step.
            weight: the weight of a loss that is a sum; None: the loss is a mean, and counts by its share.

        Raises:
            BadInput: of the microbatches of an inner step, some have a weight and others have none.
        """
        if self._weights and (self._weights[0] is None) != (weight is None):
            raise BadInput(
                "step.backward was given a weight for some microbatches of an inner step and none for others",
                means="a sum of losses and a mean of losses cannot be added",
                do="pass weight= for each microbatch, or for none",
            )
        self._weights.append(weight)
        if weight is None and share != 1.0:
            loss.backward(torch.full_like(loss, share))
        else:
            loss.backward()

    @runs_script
    def step(self) -> None:
        """Change the parameters of the model by the gradients in ``.grad``."""
        parameters = self._layout.parameters
        self._touched.update(n for n, parameter in enumerate(parameters) if parameter.grad is not None)
        self._divide_gradients()
        if self._clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self._clip_grad_norm)
        self.optimizer.step()
        self._forget_gradients()
        if self._scheduler is not None:
            self._scheduler.step()

    @torch.no_grad()
    def _divide_gradients(self) -> None:
        """Divide the gradients of sums of losses by the sum of the weights."""
        weights, self._weights = self._weights, []
        if not weights or weights[0] is None:
            return
        total = sum(weight for weight in weights if weight is not None)
        for parameter in self._layout.parameters:
            if parameter.grad is not None:
                parameter.grad.div_(avoid_zero(total))

    def _forget_gradients(self) -> None:
        for parameter in self._layout.parameters:
            parameter.grad = None

    def compute_differences(self, share: float) -> Iterator[dict[int, torch.Tensor]]:
        """Yield the values at the beginning minus the trained ones, times the share.

        They come by number, for parameters that had a gradient, as soon as their blocks are complete: peers
        wait for them.

        Args:
            share: the share of the virtual rank in the samples of the round.
        """
        layout = self._layout
        if self.noise is not None:
            yield from self.make_difference(share).divide(layout)
            return
        sections = self._allocate_sections()
        for block, numbers in group_by_last_block(layout, tuple(sorted(self._touched))):
            self._subtract(block, sections)
            self._finish(layout.view_block(sections, block), share)
            yield {number: layout.extents[number].view(sections) for number in numbers}

    def make_difference(self, share: float) -> Difference:
        """Return the whole difference of the virtual rank; see `compute_differences`."""
        layout = self._layout
        sections, touched = self._allocate_sections(), tuple(sorted(self._touched))
        blocks = [block for block, _ in group_by_last_block(layout, ())]
        for block in blocks:
            self._subtract(block, sections)
        if self.noise is not None and self._label is not None:
            # A parameter without noise would show that nothing has used it.
            touched = tuple(n for n, parameter in enumerate(layout.parameters) if parameter.requires_grad)
            self.noise.apply([flatten_dense(layout.extents[n].view(sections)) for n in touched], *self._label)
        for block in blocks:
            self._finish(layout.view_block(sections, block), share)
        return Difference(sections, touched)

    def _allocate_sections(self) -> Sections:
        trained = self._placement.values[: self._layout.parameter_sections]
        return tuple(torch.empty_like(section) for section in trained)

    @torch.no_grad()
    def _subtract(self, block: int, sections: Sections) -> None:
        """Write to a block what the virtual rank has changed in it."""
        difference = self._layout.view_block(sections, block)
        begun = self._layout.view_block(self._begun, block).to(difference.device)
        trained = self._layout.view_block(self._placement.values, block)
        torch.sub(begun, trained, out=difference)

    def _finish(self, difference: torch.Tensor, share: float) -> None:
        """Scale and round the difference of a block."""
        difference.mul_(share)
        self._round(difference)

    def _round(self, difference: torch.Tensor) -> None:
        """Round the difference of a block, if those of single virtual ranks are rounded."""
        if self.wire is not None and self.wire.group == 1:
            self.wire.round(difference)

    def hold(self, rank: int, round_: int, difference: Difference) -> None:
        """Hold the difference of a virtual rank until the next round, instead of an older one."""
        self._held = {other: held for other, held in self._held.items() if held[0] >= round_ - 1}
        self._held[rank] = round_, difference

    def find_held(self, rank: int, round_: int) -> Difference | None:
        """Return the difference that a virtual rank has made in a round; None: not on this worker."""
        held_round, difference = self._held.get(rank, (0, None))
        return difference if held_round == round_ else None

    def add_rounded(self, one: Difference, other: Difference) -> Difference:
        """Return the sum of two differences of a virtual rank, rounded as one."""
        added = one.add(other)
        for block, _ in group_by_last_block(self._layout, ()):
            self._round(self._layout.view_block(added.sections, block))
        return added

    @torch.no_grad()
    def end_rank(self) -> None:
        """End the virtual rank: restore the committed parameters, the optimizer and the schedule."""
        self._show(self._placement.arena.tensors)
        if self.averaged is not None:
            self.averaged.take()
        assert self._before is not None, "end_rank follows begin_rank"
        self._before.restore()
        if self._scheduler is not None:
            self._scheduler.load_state_dict(self._schedule_before)

    def round_moments(self, changes: list[torch.Tensor]) -> None:
        """Round the averaged state among the changes of buffers, if single differences are rounded."""
        if self.wire is None or self.wire.group > 1:
            return
        for number, extent in enumerate(self._layout.buffer_extents):
            if extent.section >= self._layout.first_moments:
                flat = extent.flatten(changes[number])
                self.wire.moments.round(flat)
                changes[number] = flat.as_strided(extent.shape, extent.stride)

    def rehearse(self) -> None:
        """Make an inner step, so that its code is loaded before others wait for it.

        It leaves a trace in averaged state only, which the caller restores with all buffers.
        """
        self.begin_rank()
        for parameter in self._layout.parameters:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        self.step()
        self.make_difference(1.0)
        self.end_rank()
