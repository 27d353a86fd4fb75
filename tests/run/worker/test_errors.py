"""A mistake in a script is refused at once, before a wrong step is committed."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastane
from elastane.common.errors import BadInput, RunFailed

from .lessons import CLASSES, FEATURES, Lesson, compute_mean_loss, make_samples, prepare_lesson


def build_linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


@pytest.fixture
def learned():
    return prepare_lesson(Lesson(build_linear))


def iterate_steps(learned, data=None, **wishes):
    chosen = {"global_batch": 8, "microbatch": 2, "until": 3} | wishes
    return learned.run.steps(make_samples() if data is None else data, **chosen)


def train(learned, body, data=None):
    """Train, and call a function for each microbatch."""
    for step in iterate_steps(learned, data):
        for batch in step:
            body(step, batch)


def build_backward(learned, factor=1.0):
    return lambda step, batch: step.backward(compute_mean_loss(learned.model, batch)[0] * factor)


def test_steps_need_a_prepared_model():
    with pytest.raises(BadInput, match=r"has not called run\.prepare"):
        next(elastane.join().steps(make_samples(), global_batch=8, microbatch=2, until=1))


def test_a_run_has_one_model(learned):
    with pytest.raises(BadInput, match="prepare was called twice"):
        learned.run.prepare(learned.model, learned.optimizer)


def test_a_run_has_one_sequence_of_steps(learned):
    train(learned, build_backward(learned))
    with pytest.raises(BadInput, match="steps was called twice"):
        next(iterate_steps(learned))


def test_a_step_that_the_script_leaves_early_is_refused(learned):
    steps = iterate_steps(learned)
    step = next(steps)
    build_backward(learned)(step, next(iter(step)))
    with pytest.raises(BadInput, match="step 1 was not iterated to its end"):
        next(steps)


def test_a_step_that_the_script_does_not_iterate_is_refused(learned):
    with pytest.raises(BadInput, match="step 1 was not iterated to its end"):
        list(iterate_steps(learned))


def test_a_microbatch_without_a_backward_pass_is_refused(learned):
    with pytest.raises(BadInput, match=r"without step.backward"):
        train(learned, lambda _step, _batch: None)


def test_a_second_backward_pass_of_a_microbatch_is_refused(learned):
    def run_twice(step, batch):
        build_backward(learned)(step, batch)
        build_backward(learned)(step, batch)

    with pytest.raises(BadInput, match="without a microbatch"):
        train(learned, run_twice)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_not_committed(learned, value):
    before = learned.model.weight.clone()
    with pytest.raises(RunFailed, match=f"step 1, virtual rank 0 is {value}"):
        train(learned, build_backward(learned, value))
    assert torch.equal(learned.model.weight, before)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"global_batch": 8, "microbatch": 3}, "not a multiple of the microbatch"),
        ({"global_batch": 0}, "global_batch must be a whole number, 1 or more"),
        ({"microbatch": -2}, "microbatch must be a whole number, 1 or more"),
        ({"until": "3 weeks"}, "until is the number of steps or epochs"),
        ({"until": 0}, "until is the number of steps or epochs"),
        ({"until": "0 epochs"}, "until is the number of steps or epochs"),
    ],
)
def test_the_error_names_an_invalid_argument(learned, wishes, words):
    with pytest.raises(BadInput, match=words):
        next(iterate_steps(learned, **wishes))


def test_virtual_ranks_that_do_not_divide_the_batch_are_refused():
    with pytest.raises(BadInput, match="does not divide into 3"):
        next(iterate_steps(prepare_lesson(Lesson(build_linear), virtual_ranks=3)))


def test_an_empty_dataset_is_refused(learned):
    with pytest.raises(BadInput, match="the dataset is empty"):
        next(iterate_steps(learned, TensorDataset(torch.empty(0, FEATURES))))


def test_an_exception_of_the_dataset_arrives_unchanged(learned):
    class Torn(TensorDataset):
        def __getitem__(self, index):
            raise OSError("the file is torn")

    with pytest.raises(OSError, match="the file is torn"):
        train(learned, build_backward(learned), Torn(*make_samples().tensors))


def test_an_evaluation_before_the_first_step_is_refused(learned):
    with pytest.raises(BadInput, match="an evaluation was begun before the first step"):
        next(iter(learned.run.evaluate(make_samples(), microbatch=5)))


def test_a_checkpoint_before_the_first_step_is_refused(learned):
    with pytest.raises(BadInput, match="a checkpoint was begun before the first step"):
        learned.run.checkpoint()


def test_an_optimizer_of_another_model_is_refused():
    model, other = build_linear(), build_linear()
    with pytest.raises(BadInput, match="pass the module that holds every trained parameter"):
        elastane.join().prepare(model, torch.optim.SGD(other.parameters(), lr=0.1))


def test_an_optimizer_that_trains_nothing_is_refused():
    model = build_linear().requires_grad_(requires_grad=False)
    with pytest.raises(BadInput, match="trains no parameter"):
        elastane.join().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_model_on_another_device_is_refused():
    model = build_linear().to("meta")
    with pytest.raises(BadInput, match="meta"):
        elastane.join().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
