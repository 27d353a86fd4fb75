"""Kept values are the same on every worker, are sent to joiners, and change only between steps."""

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from elastane.common.errors import BadInput
from elastane.run.protocol.commit import find_disagreement
from elastane.run.protocol.messages import Vote
from elastane.run.worker.state.run_keep import RunKeep

from .lessons import CLASSES, FEATURES, Lesson, compute_mean_loss, make_samples, prepare_lesson, train_elastic
from .test_optimizers import pack


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def hand_over(keep: RunKeep, other: RunKeep) -> RunKeep:
    other.load(*keep.describe())
    return other


class Counter:
    def __init__(self) -> None:
        self.count, self.pair = 0, (0.0, 0.0)

    def state_dict(self):
        return {"count": self.count, "pair": self.pair}

    def load_state_dict(self, state):
        self.count, self.pair = state["count"], state["pair"]


@pytest.mark.parametrize(
    "value",
    [0, -3, 1 << 80, 0.1, -0.0, 5e-324, math.inf, True, None, "", "words", (1, (2.5, "x")), ()],
    ids=repr,
)
def test_values_arrive_unchanged(value):
    keep = RunKeep()
    keep["it"] = value
    there = hand_over(keep, RunKeep())
    assert there["it"] == value
    assert type(there["it"]) is type(value)
    assert math.copysign(1, there["it"]) == math.copysign(1, value) if isinstance(value, float) else True
    assert there.digest() == keep.digest() != ""


def test_nan_arrives():
    keep = RunKeep()
    keep["it"] = math.nan
    assert math.isnan(hand_over(keep, RunKeep())["it"])


def test_kept_lists_and_dicts_cannot_be_changed():
    keep = RunKeep()
    history = [1.0, 2.0]
    keep["history"], keep["by name"] = history, {"a": [1]}
    history.append(3.0)
    assert keep["history"] == (1.0, 2.0)
    with pytest.raises(TypeError):
        keep["by name"]["a"] = 2
    there = hand_over(keep, RunKeep())
    assert there["by name"] == keep["by name"] == {"a": (1,)}


@pytest.mark.parametrize("tensor", [torch.tensor(0.5), torch.arange(6).reshape(2, 3), torch.zeros(0)])
def test_a_tensor_is_kept_itself_and_arrives_in_the_tensor_of_the_joiner(tensor):
    keep, there = RunKeep(), RunKeep()
    keep["it"], there["it"] = tensor, (theirs := torch.ones_like(tensor))
    assert keep["it"] is tensor
    assert hand_over(keep, there)["it"] is theirs
    assert torch.equal(theirs, tensor)
    assert torch.equal(hand_over(keep, RunKeep())["it"], tensor)


def test_a_module_is_kept_with_its_parameters_and_buffers():
    keep, there = RunKeep(), RunKeep()
    keep["target"], there["target"] = nn.BatchNorm1d(3), (theirs := nn.BatchNorm1d(3))
    with torch.no_grad():
        keep["target"].weight.mul_(3)
        keep["target"].running_mean.add_(1)
    hand_over(keep, there)
    assert torch.equal(theirs.weight, keep["target"].weight)
    assert torch.equal(theirs.running_mean, keep["target"].running_mean)


@pytest.mark.parametrize(
    "value", [object(), torch.ones(3, requires_grad=True) * 2, lambda: 0, {1, 2}, b"bytes", [object()]]
)
def test_a_value_that_cannot_be_sent_is_refused_at_once(value):
    keep = RunKeep()
    with pytest.raises(BadInput, match="cannot be"):
        keep["it"] = value
    assert "it" not in keep


def test_an_object_gets_its_state_if_it_is_created_before_or_after_the_arrival():
    keep = RunKeep()
    keep["counter"] = counter = Counter()
    counter.count, counter.pair = 7, (0.5, math.inf)
    before, after = RunKeep(), RunKeep()
    before["counter"] = early = Counter()
    hand_over(keep, before)
    hand_over(keep, after)
    assert "counter" not in after
    assert after.digest() == keep.digest()
    after["counter"] = late = Counter()
    assert early.state_dict() == late.state_dict() == counter.state_dict()
    assert before.digest() == after.digest() == keep.digest()


def test_a_value_that_other_workers_have_dropped_is_dropped():
    keep, other = RunKeep(), RunKeep()
    other["old"] = 1
    assert not hand_over(keep, other)
    assert other.digest() == keep.digest() == ""


def test_the_order_of_names_does_not_matter_and_every_value_does():
    one, two = RunKeep(), RunKeep()
    one["a"], one["b"] = 1, 2
    two["b"], two["a"] = 2, 1
    assert one.digest() == two.digest()
    two["a"] = 1.0000000000000002
    assert one.digest() != two.digest()


def test_a_joiner_receives_the_kept_values():
    learned = prepare_lesson(Lesson(linear))
    learned.run.keep["best"] = math.inf
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=4):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        learned.run.keep["best"] = min(learned.run.keep["best"], step.loss)
    joiner = prepare_lesson(Lesson(linear))
    joiner.run.keep["best"] = math.inf
    state = learned.run._trainer.state
    joiner.run._trainer.state.unpack(pack(state, [state.units - 1], []))
    assert joiner.run.keep["best"] == learned.run.keep["best"] < math.inf


def test_a_change_inside_a_step_is_refused():
    learned = prepare_lesson(Lesson(linear))
    steps = learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=2)
    next(iter(next(steps)))
    with pytest.raises(BadInput, match="changed inside a step"):
        learned.run.keep["seen"] = 1
    with pytest.raises(BadInput, match="changed inside a step"):
        del learned.run.keep["seen"]


@pytest.mark.parametrize(
    ("vote", "words"),
    [
        (Vote(generation=1, round=3, leaves=(), replicated={"run.keep": "1"}), ""),
        (
            Vote(generation=1, round=3, leaves=(), replicated={"run.keep": "2"}),
            "worker 0 and worker 1 differ in run.keep",
        ),
        (Vote(generation=1, round=3, leaves=()), "worker 0 and worker 1 differ in run.keep"),
        (
            Vote(generation=1, round=3, leaves=(), replicated={"run.keep": "1"}, kind="settle"),
            "in one to settle",
        ),
    ],
)
def test_votes_with_different_kept_values_disagree(vote, words):
    why = find_disagreement(0, "train", {"run.keep": "1"}, {1: vote})
    assert words in why
    assert bool(words) == bool(why)


# -- schedules -----------------------------------------------------------------------------------------------


def sequence(optimizer):
    return lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
            lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5),
        ],
        milestones=[2],
    )


def chain(optimizer):
    return lr_scheduler.ChainedScheduler(
        [
            lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=7),
            lr_scheduler.LambdaLR(optimizer, lambda step: 0.97**step),
        ]
    )


class Decay:
    """A callable object; its attributes are part of the schedule's state."""

    def __init__(self) -> None:
        self.rate = 0.9

    def __call__(self, step: int) -> float:
        return self.rate**step


SCHEDULES = {
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [3, 7, 9], 0.1),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 4, 0.1),
    "SequentialLR": sequence,
    "ChainedScheduler": chain,
    "LambdaLR of an object": lambda o: lr_scheduler.LambdaLR(o, Decay()),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
    "OneCycleLR of three phases": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 20, three_phase=True),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, 2),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 12, 2.0),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, 5),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, cooldown=1),
}


def step_schedule(scheduler, number) -> None:
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0 + (number % 5))
    else:
        scheduler.step()


def list_groups(optimizer):
    return [
        {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_continues_bit_for_bit_in_a_joiner(name):
    lesson = Lesson(linear, scheduler=SCHEDULES[name], steps=5)
    donor, joiner = train_elastic(lesson), prepare_lesson(lesson)
    if name == "ReduceLROnPlateau":
        for number in range(5):
            step_schedule(donor.scheduler, number)
    state = donor.run._trainer.state
    joiner.run._trainer.state.unpack(pack(state, [state.units - 1], []))
    joiner.optimizer._opt_called = True
    for number in range(5, 15):
        assert list_groups(joiner.optimizer) == list_groups(donor.optimizer)
        step_schedule(donor.scheduler, number)
        step_schedule(joiner.scheduler, number)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_plateau_is_stepped_by_the_script_and_moves_the_rate(copies):
    lesson = Lesson(linear, scheduler=lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5))
    learned = prepare_lesson(lesson, copies=copies)
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=4):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        learned.scheduler.step(1.0)
    assert learned.optimizer.param_groups[0]["lr"] == 0.05 / 2**3


def test_a_schedule_by_epochs_is_stepped_by_the_script_and_kept():
    learned = prepare_lesson(Lesson(linear), copies=2)
    schedule = lr_scheduler.MultiStepLR(learned.optimizer, [1, 2], 0.5)
    learned.run.keep["by epochs"] = schedule
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=3):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        schedule.step()
    joiner = prepare_lesson(Lesson(linear), copies=2)
    joiner.run.keep["by epochs"] = theirs = lr_scheduler.MultiStepLR(joiner.optimizer, [1, 2], 0.5)
    state = learned.run._trainer.state
    joiner.run._trainer.state.unpack(pack(state, [state.units - 1], []))
    assert theirs.last_epoch == 3
    assert theirs.milestones == schedule.milestones
    assert type(theirs.milestones) is type(schedule.milestones)
    assert joiner.optimizer.param_groups[0]["lr"] == 0.05 / 4
