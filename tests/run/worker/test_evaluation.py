"""An evaluation reads every sample once, in order, and its sums are exact."""

import math

import pytest
import torch
from torch import nn

from elastane.common.errors import BadInput

from .lessons import CLASSES, FEATURES, Lesson, compute_mean_loss, make_samples, prepare_lesson


@pytest.fixture
def in_training():
    """Yield a run in the middle of its loop, where it can evaluate."""
    learned = prepare_lesson(Lesson(lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout(0.2))))
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=2):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        if step.number == 1:
            yield learned


@pytest.mark.parametrize("microbatch", [1, 3, 7, 20, 100])
def test_every_sample_is_seen_once_and_in_order(in_training, microbatch):
    data = make_samples()
    evaluation = in_training.run.evaluate(data, microbatch=microbatch)
    seen = []
    for inputs, targets in evaluation:
        seen.append(inputs)
        evaluation.add(samples=len(targets), classes=targets)
    assert torch.equal(torch.cat(seen), data.tensors[0])
    assert evaluation.sums == {"samples": 20.0, "classes": float(data.tensors[1].sum())}


def test_sums_equal_exact_arithmetic(in_training):
    evaluation = in_training.run.evaluate(make_samples(), microbatch=1)
    values = [1e16, 1.0, -1e16, 0.5] * 5
    for place, _ in enumerate(evaluation):
        evaluation.add(total=values[place])
    assert evaluation.sums["total"] == math.fsum(values)


def test_a_name_may_have_values_of_some_microbatches_only(in_training):
    evaluation = in_training.run.evaluate(make_samples(), microbatch=4)
    for place, _ in enumerate(evaluation):
        if place == 3:
            evaluation.add(seldom=2, often=1)
        evaluation.add(often=1)
    assert evaluation.sums == {"seldom": 2.0, "often": 6.0}


def test_an_evaluation_after_the_loop_uses_the_last_parameters_and_changes_none():
    learned = prepare_lesson(Lesson(lambda: nn.Linear(FEATURES, CLASSES)))
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=2):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
    before, digest = learned.model.weight.clone(), learned.run.digest
    evaluation = learned.run.evaluate(make_samples(), microbatch=6)
    with torch.no_grad():
        for inputs, _ in evaluation:
            evaluation.add(total=learned.model(inputs))
    assert evaluation.sums["total"] == pytest.approx(
        learned.model(make_samples().tensors[0]).sum().item(), rel=1e-5
    )
    assert torch.equal(learned.model.weight, before)
    assert learned.run.digest == digest


def test_an_evaluation_between_steps_does_not_change_the_training():
    def train(*, evaluating: bool):
        learned = prepare_lesson(Lesson(lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout(0.2))))
        for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=4):
            for batch in step:
                step.backward(compute_mean_loss(learned.model, batch)[0])
            evaluation = learned.run.evaluate(make_samples(), microbatch=3) if evaluating else ()
            for inputs, _ in evaluation:
                evaluation.add(total=learned.model(inputs).detach())
        return learned.run.digest

    assert train(evaluating=True) == train(evaluating=False)


def test_outputs_are_in_the_order_of_the_microbatches(in_training):
    score = in_training.run.evaluate(make_samples(), microbatch=8)
    for place, (inputs, targets) in enumerate(score):
        score.outputs.add(targets=targets, **({"first": inputs[:1].T} if place else {}))
        inputs.zero_()
    data, targets = make_samples().tensors
    assert [len(part) for part in score.outputs["targets"]] == [8, 8, 4]
    assert torch.equal(torch.cat(score.outputs["targets"]), targets)
    assert torch.equal(torch.cat(score.outputs["first"], 1).T, data[[8, 16]])
    assert list(score.outputs) == ["first", "targets"]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (3.0, "3.0"),
        ([torch.ones(1)], "a list"),
        (torch.ones(1, dtype=torch.complex128), "a tensor of shape"),
        (torch.ones(2), "a second tensor"),
    ],
)
def test_outputs_are_tensors_and_each_name_has_one(in_training, given, fault):
    score = in_training.run.evaluate(make_samples(), microbatch=20)
    for _ in score:
        if fault == "a second tensor":
            score.outputs.add(logits=given)
        with pytest.raises(BadInput, match=fault):
            score.outputs.add(logits=given)
    with pytest.raises(BadInput, match="outside the loop"):
        score.outputs.add(logits=torch.ones(1))
