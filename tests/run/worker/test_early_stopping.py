"""A script may end its run between steps: by stopping it, by patience, or by leaving the loop."""

import math

import pytest
from torch import nn

import elastane
from elastane.common.errors import BadInput

from .lessons import (
    CLASSES,
    FEATURES,
    Lesson,
    assert_same_bits,
    compute_mean_loss,
    make_samples,
    prepare_lesson,
    train_elastic,
)
from .test_optimizers import pack


def build_linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def train_and_call(learned, after, until=9):
    """Train, and call a function after each step; return the numbers of the steps."""
    made = []
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=until):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        made.append(step.number)
        after(step)
    return made


def test_a_stopped_run_equals_a_run_that_ends_at_the_same_step():
    learned = prepare_lesson(Lesson(build_linear))
    made = train_and_call(learned, lambda step: learned.run.stop("enough") if step.number == 4 else None)
    assert made == [1, 2, 3, 4]
    four = train_elastic(Lesson(build_linear, steps=4))
    assert learned.run.digest == four.run.digest
    assert_same_bits(learned.model, four.model)


def test_a_stop_before_the_inner_loop_ends_the_run_after_that_step():
    learned = prepare_lesson(Lesson(build_linear))
    made = []
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=9):
        if step.number == 3:
            learned.run.stop("enough")
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        made.append(step.number)
    assert made == [1, 2, 3]


def test_the_script_may_skip_the_step_that_follows_a_stop():
    learned = prepare_lesson(Lesson(build_linear))
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=9):
        if step.number == 3:
            learned.run.stop("enough")
            continue
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
    assert learned.run.step == 2
    assert learned.run.digest == train_elastic(Lesson(build_linear, steps=2)).run.digest


def test_a_stop_inside_a_step_or_before_the_first_step_is_refused():
    learned = prepare_lesson(Lesson(build_linear))
    with pytest.raises(BadInput, match="before the first step"):
        learned.run.stop("too early")
    steps = learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=9)
    for batch in next(steps):
        next_step = learned.run._step
        next_step.backward(compute_mean_loss(learned.model, batch)[0])
    inner = iter(next(steps))
    next(inner)
    with pytest.raises(BadInput, match="inside a step"):
        learned.run.stop("in between")


def test_a_script_can_end_its_run_by_leaving_the_loop_between_two_steps_only():
    learned = prepare_lesson(Lesson(build_linear))
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=9):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        if step.number == 3:
            break
    assert learned.run._leave_loop()
    assert learned.run.digest == train_elastic(Lesson(build_linear, steps=3)).run.digest

    other = prepare_lesson(Lesson(build_linear))
    for step in other.run.steps(make_samples(), global_batch=8, microbatch=2, until=9):
        for place, batch in enumerate(step):
            step.backward(compute_mean_loss(other.model, batch)[0])
            if (step.number, place) == (2, 1):
                break
        else:
            continue
        break
    assert not other.run._leave_loop()


# -- patience ------------------------------------------------------------------------------------------------


def build_stopper(learned, **wishes):
    return elastane.EarlyStopping(learned.run, **{"patience": 2} | wishes)


def train_with_metrics(figures, **wishes):
    learned = prepare_lesson(Lesson(build_linear))
    stopper = build_stopper(learned, **wishes)
    made = train_and_call(learned, lambda step: stopper.update(figures[step.number - 1]))
    return made[-1], stopper


def test_update_returns_whether_a_metric_is_the_best_so_far():
    learned = prepare_lesson(Lesson(build_linear))
    stopper, better = build_stopper(learned), []
    train_and_call(
        learned, lambda step: better.append(stopper.update([3, 2, 2, 1][step.number - 1])), until=4
    )
    assert better == [True, True, False, True]
    assert (stopper.best_step, stopper.waited) == (4, 0)


@pytest.mark.parametrize(
    ("figures", "wishes", "last", "best"),
    [
        ([5, 4, 4, 4, 1], {}, 4, 4),
        ([5, 4, 4, 3, 3, 3], {}, 6, 3),
        ([1, 2, 3, 3, 3, 9], {"mode": "max"}, 5, 3),
        ([5, 4.95, 4.85, 4.8, 4.76, 4.751, 1], {"min_delta": 0.1, "patience": 3}, 6, 4.85),
        ([5, 4.95, 4.91, 1], {"min_delta": 0.1}, 3, 5),
        ([math.nan, math.nan, 1], {}, 2, None),
        ([2, math.nan, 1, math.inf, math.nan], {}, 5, 1),
        ([math.inf, 2, 2, 2], {}, 4, 2),
    ],
)
def test_early_stopping_stops_the_run_after_its_patience(figures, wishes, last, best):
    made, stopper = train_with_metrics(figures, **wishes)
    assert made == last
    assert stopper.best == best


def test_the_counters_reach_a_joining_worker():
    learned = prepare_lesson(Lesson(build_linear))
    stopper = build_stopper(learned, patience=5)
    train_and_call(learned, lambda step: stopper.update([3.0, 2.0, 2.5, 2.5][step.number - 1]), until=4)
    joiner = prepare_lesson(Lesson(build_linear))
    joiner_stopper = build_stopper(joiner, patience=5)
    state = learned.run._trainer.state
    joiner.run._trainer.state.unpack(pack(state, [state.units - 1], []))
    assert joiner_stopper.state_dict() == {"best": 2.0, "best_step": 2, "waited": 2}


@pytest.mark.parametrize(
    "wishes", [{"patience": 0}, {"min_delta": -1.0}, {"min_delta": math.nan}, {"mode": "up"}], ids=str
)
def test_invalid_arguments_of_early_stopping_are_refused(wishes):
    with pytest.raises(BadInput, match="EarlyStopping"):
        build_stopper(prepare_lesson(Lesson(build_linear)), **wishes)


def test_two_early_stoppings_of_a_run_need_two_names():
    learned = prepare_lesson(Lesson(build_linear))
    build_stopper(learned)
    with pytest.raises(BadInput, match="already"):
        build_stopper(learned)
    build_stopper(learned, name="accuracy", mode="max")


def test_an_update_of_early_stopping_inside_a_step_is_refused():
    learned = prepare_lesson(Lesson(build_linear))
    stopper = build_stopper(learned)
    steps = learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=2)
    next(iter(next(steps)))
    with pytest.raises(BadInput, match="inside a step"):
        stopper.update(1.0)
