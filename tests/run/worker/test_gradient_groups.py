"""Which gradients are added together, and which hooks take them during a backward pass."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from elastane.common.errors import BadInput
from elastane.run.worker.state.devices import SideStream
from elastane.run.worker.state.gradient_groups import (
    ON_HOST,
    UNLIMITED,
    BackwardOrder,
    GroupLimits,
    divide_gradients,
)
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.slot_memory import DeviceSlots, HostSlots

KIB = 1 << 10


@given(
    sizes=st.lists(st.integers(1, 1 << 20), max_size=60),
    limits=st.builds(
        GroupLimits, largest=st.integers(0, 1 << 20), most=st.integers(1, 9), enough=st.integers(1, 1 << 21)
    ),
)
def test_each_gradient_is_in_one_group_and_groups_keep_the_order(sizes, limits):
    groups = divide_gradients(range(len(sizes)), sizes, limits)
    assert sorted(number for group in groups for number in group) == list(range(len(sizes)))
    assert [group[-1] for group in groups[:-1]] == sorted(group[-1] for group in groups[:-1])
    for group in groups:
        assert list(group) == sorted(group)
        assert len(group) <= limits.most
        # All but the last gradient fit together without being enough.
        assert sum(sizes[number] for number in group[:-1]) < limits.enough
        assert len(group) == 1 or all(sizes[number] <= limits.largest for number in group)


def test_a_large_gradient_does_not_wait_for_small_ones_on_the_host():
    sizes = [4 * KIB, 300 * KIB, 4 * KIB]
    assert divide_gradients([2, 1, 0], sizes, ON_HOST) == [(1,), (2, 0)]
    assert divide_gradients([2, 1, 0], sizes, UNLIMITED) == [(2, 1, 0)]


def observe(order, numbers, *, nested=(), apart=()):
    order.begin_pass()
    for number in numbers:
        order.note(number, nested=number in nested, apart=number in apart)
    order.end_pass()


def test_hooks_take_groups_in_the_order_of_the_observed_pass():
    order = BackwardOrder([KIB] * 5, GroupLimits(most=2))
    observe(order, [4, 3, 2, 1, 0])
    assert order.plan_groups() == [(4, 3), (2, 1), (0,)]


def test_gradients_that_do_not_fit_into_the_order_are_taken_alone_or_after_the_pass():
    order = BackwardOrder([KIB] * 6, UNLIMITED)
    observe(order, [5, 4, 4, 3, 2, 1], nested=[3], apart=[2])
    # 4 came in parts and 3 in a nested pass; 2 was computed on another stream, and 0 not at all.
    assert order.in_parts == {3, 4}
    assert order.plan_groups() == [(5, 1), (0,), (2,)]


def test_without_an_observed_pass_each_gradient_is_taken_alone():
    assert BackwardOrder([KIB] * 3, UNLIMITED).plan_groups() == [(0,), (1,), (2,)]


class Branches(nn.Module):
    """A model in which the order of gradients follows the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, inputs, *, swapped=False, skipped=False):
        one, two = (self.second, self.first) if swapped else (self.first, self.second)
        hidden = one(inputs)
        return self.head(hidden if skipped else two(hidden)).sum()


KINDS = {"host": HostSlots, "device": lambda layout: DeviceSlots(layout, SideStream(layout.device))}


@pytest.fixture(params=KINDS)
def gradients(request):
    model = Branches()
    layout = ModelLayout(model, torch.optim.SGD(model.parameters(), lr=0.1))
    built = Gradients(layout, exact=True, memory=KINDS[request.param](layout))
    built.model = model
    return built


def take(gradients, *losses, own=None):
    """Sum a virtual rank for each loss, as a worker with peers does; return the sums, and count hooks."""
    gradients.begin_round(len(losses))
    hooks = []
    register = torch.Tensor.register_post_accumulate_grad_hook

    def count(parameter, hook):
        hooks.append(hook)
        return register(parameter, hook)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Parameter, "register_post_accumulate_grad_hook", count, raising=False)
        for rank, compute in enumerate(losses):
            last = rank == len(losses) - 1
            gradients.begin_leaf(rank, (lambda _blocks: None) if last else None, None if last else rank + 1)
            if own is not None:
                own().backward()
            gradients.backward(compute())
            gradients.end_leaf([])
    return [view.clone() for view in gradients.slots.view_parameters(0)], len(hooks)


def add_plainly(model, *losses):
    model.zero_grad()
    sum(compute() for compute in losses).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def rehearse(gradients, loss):
    gradients.forget()
    gradients.backward(loss)
    gradients.forget()


INPUTS = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("later", [{}, {"swapped": True}, {"skipped": True}], ids=str)
def test_groups_of_the_rehearsal_give_the_sums_of_any_later_order(gradients, later):
    model = gradients.model
    rehearse(gradients, model(INPUTS))
    losses = [lambda: model(INPUTS), lambda: model(INPUTS + 1, **later)]
    sums, hooks = take(gradients, *losses)
    # One group has all gradients of the small model.
    assert hooks == 1
    for ours, plain in zip(sums, add_plainly(model, *losses), strict=True):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("rehearsed", [True, False])
def test_a_pass_of_the_scripts_own_is_added_whatever_comes_first(gradients, rehearsed):
    """With another order than the rehearsal's, a gradient of the own pass must not be taken too early."""
    model = gradients.model
    if rehearsed:
        rehearse(gradients, model(INPUTS))
    sums, _ = take(gradients, lambda: model(INPUTS, swapped=True), own=lambda: model(INPUTS + 2))
    expected = add_plainly(model, lambda: model(INPUTS, swapped=True), lambda: model(INPUTS + 2))
    for ours, plain in zip(sums, expected, strict=True):
        torch.testing.assert_close(ours, plain)


def compute_with_nested_passes(model):
    inputs = INPUTS.clone().requires_grad_()
    hidden = checkpoint(model.first, inputs, use_reentrant=True)
    return model.head(model.first(hidden)).sum()


def test_a_gradient_in_parts_is_taken_after_the_pass(gradients):
    model = gradients.model
    rehearse(gradients, compute_with_nested_passes(model))
    sums, _ = take(gradients, lambda: compute_with_nested_passes(model))
    for ours, plain in zip(sums, add_plainly(model, lambda: compute_with_nested_passes(model)), strict=True):
        torch.testing.assert_close(ours, plain)


def test_parts_that_the_rehearsal_has_not_shown_are_never_lost(gradients):
    """The first part may be taken already; then the pass is refused."""
    model = gradients.model
    rehearse(gradients, model(INPUTS))
    try:
        sums, _ = take(gradients, lambda: compute_with_nested_passes(model))
    except BadInput:
        return
    for ours, plain in zip(sums, add_plainly(model, lambda: compute_with_nested_passes(model)), strict=True):
        torch.testing.assert_close(ours, plain)


class Reused(torch.autograd.Function):
    """A product with a gradient that is always in the same memory, as that of a replayed CUDA graph."""

    memory = torch.empty(3)

    @staticmethod
    def forward(ctx, weight, inputs):
        ctx.save_for_backward(inputs)
        return weight @ inputs

    @staticmethod
    def backward(ctx, gradient):
        torch.mul(ctx.saved_tensors[0], gradient, out=Reused.memory)
        return Reused.memory.detach(), None


class Replayed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("awaited", [True, False])
def test_gradients_in_memory_that_the_next_pass_overwrites_are_exact_on_a_device(ranks, awaited):
    model = Replayed()
    layout = ModelLayout(model, torch.optim.SGD(model.parameters(), lr=0.1))
    gradients = Gradients(layout, exact=True, memory=KINDS["device"](layout))
    gradients.begin_round(ranks, alone=not awaited)
    for rank in range(ranks):
        last = rank == ranks - 1
        gradients.begin_leaf(rank, (lambda _blocks: None) if last else None, None if last else rank + 1)
        gradients.backward(Reused.apply(model.weight, torch.full((3,), 2.0**rank)))
        assert model.weight.grad is None or last
        gradients.end_leaf([])
    assert gradients.slots.view_parameters(0)[0].tolist() == [2.0**ranks - 1] * 3


def test_on_the_host_such_a_gradient_is_refused():
    model = Replayed()
    gradients = Gradients(ModelLayout(model, torch.optim.SGD(model.parameters(), lr=0.1)), exact=True)
    gradients.begin_round(2)
    gradients.begin_leaf(0, None, 1)
    gradients.backward(Reused.apply(model.weight, torch.ones(3)))
    gradients.end_leaf([])
    gradients.begin_leaf(1, None)
    with pytest.raises(
        BadInput, match="the gradient of weight is in the memory of that of the microbatch before"
    ):
        gradients.backward(Reused.apply(model.weight, torch.ones(3)))
