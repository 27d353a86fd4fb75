"""Changes that a script makes between two steps are part of the state, at the end and in checkpoints."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from elastane.common.errors import BadInput
from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.worker.heartbeat import Heartbeat

from .lessons import CLASSES, FEATURES, Lesson, compute_mean_loss, make_samples, prepare_lesson, train_elastic
from .test_optimizers import pack


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("average", torch.zeros(CLASSES, FEATURES))

    def forward(self, inputs):
        return self.layer(inputs)


class Targeted(nn.Module):
    """A network with a frozen copy of its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
        self.target = nn.Linear(FEATURES, 8).requires_grad_(requires_grad=False)
        self.scale, self.history = 1.0, torch.zeros(2)

    def forward(self, inputs):
        return self.body(inputs)


def train_and_change(learned, steps, between):
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=steps):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        between(step)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_buffer_has_the_value_that_the_script_wrote_after_the_last_step(copies):
    learned, expected = prepare_lesson(Lesson(Averaging), copies=copies), torch.zeros(CLASSES, FEATURES)

    def change_state(_step):
        learned.model.average.lerp_(learned.model.layer.weight.detach(), 0.1)
        expected.lerp_(learned.model.layer.weight.detach(), 0.1)

    train_and_change(learned, 4, change_state)
    assert torch.equal(learned.model.average, expected)
    assert expected.any()


def test_a_joining_worker_receives_the_state_that_the_script_left():
    """The state has frozen parameters, flags, numbers and tensors in attributes, and run.keep."""
    donor, joiner = prepare_lesson(Lesson(Targeted)), prepare_lesson(Lesson(Targeted))
    for learned in (donor, joiner):
        average = get_ema_multi_avg_fn(0.5)
        learned.run.keep["ema"] = learned.ema = AveragedModel(learned.model.body[0], multi_avg_fn=average)

    def change_state(step):
        donor.ema.update_parameters(donor.model.body[0])
        donor.model.target.weight.data.mul_(0.5).add_(donor.model.body[0].weight.data, alpha=0.5)
        donor.model.scale, donor.model.history = 0.9**step.number, torch.tensor([1.0, step.loss])
        donor.model.body[1].p = 0.25
        donor.model.body[2].bias.requires_grad_(step.number > 5)
        donor.model.body[0].train(mode=False)

    train_and_change(donor, 3, change_state)
    state = donor.run._trainer.state
    joiner.run._trainer.state.unpack(pack(state, range(state.units), range(state.units)))
    theirs, mine = joiner.model, donor.model
    assert torch.equal(theirs.target.weight, mine.target.weight)
    assert (theirs.scale, theirs.body[1].p) == (mine.scale, mine.body[1].p) == (0.9**3, 0.25)
    assert torch.equal(theirs.history, mine.history)
    assert not theirs.body[2].bias.requires_grad
    assert not theirs.body[0].training
    assert torch.equal(joiner.ema.module.weight, donor.ema.module.weight)
    assert joiner.ema.n_averaged == donor.ema.n_averaged == 3
    assert joiner.run._trainer.state.replicated.digest_parts() == state.replicated.digest_parts()
    assert joiner.run._trainer.state.replicated.digest() == state.replicated.digest()


def test_a_joining_worker_receives_attributes_as_they_are_between_microbatches():
    """A microbatch may change one for a while, as an adapter that is disabled for a reference model."""
    donor, joiner = prepare_lesson(Lesson(Targeted)), prepare_lesson(Lesson(Targeted))
    model, state, packed = donor.model, donor.run._trainer.state, {}
    model.scale, model.history = 0.5, torch.tensor([1.0, 2.0])
    for step in donor.run.steps(make_samples(), global_batch=8, microbatch=4, until="3 steps"):
        for batch in step:
            model.scale, model.disabled, model.body[1].p = 0.0, True, 0.0
            # The last one of a step is not that of the rehearsal.
            packed[step.number] = pack(state, range(state.units), range(state.units))
            model.scale, model.body[1].p = 0.5 * step.number, 0.5
            del model.disabled
            step.backward(compute_mean_loss(model, batch)[0])
        model.scale = 0.5 * (step.number + 1)
        model.history.data.mul_(2)
    assert list(packed) == [1, 2, 3]
    for number, sent in packed.items():
        joiner.run._trainer.state.unpack(sent)
        assert not hasattr(joiner.model, "disabled")
        assert (joiner.model.scale, joiner.model.body[1].p) == (0.5 * number, 0.5)
        assert joiner.model.history.tolist() == [2.0 ** (number - 1), 2.0**number]


def test_the_digest_of_a_run_covers_frozen_parameters():
    def digest(change):
        learned = prepare_lesson(Lesson(Targeted))
        train_and_change(learned, 2, lambda _step: learned.model.target.weight.data.add_(change))
        return learned.run.digest

    assert digest(0.0) == digest(0.0) != digest(0.1)


def test_rehearsing_the_optimizer_leaves_no_trace():
    class Counting(torch.optim.SGD):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.calls, self.total = 0, torch.zeros(())
            self.state["all"] = {"calls": 0}

        def step(self, closure=None):
            self.calls += 1
            self.total += 1
            self.state["all"]["calls"] += 1
            self.made_in_step = True
            return super().step(closure)

    learned = prepare_lesson(
        Lesson(lambda: nn.Linear(FEATURES, CLASSES), lambda m: Counting(m.parameters(), lr=0.1))
    )
    training = learned.run._trainer
    training.state.rehearse(training.gradients.slots.sums)
    optimizer = learned.optimizer
    assert (optimizer.calls, optimizer.total.item(), dict(optimizer.state)) == (0, 0.0, {"all": {"calls": 0}})
    assert not hasattr(optimizer, "made_in_step")


def test_an_optimizer_inside_another_one_is_refused():
    class Lookahead(torch.optim.SGD):
        def __init__(self, params, inner):
            super().__init__(params, lr=0.1)
            self.inner = inner

    def build(model):
        return Lookahead(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.1))

    with pytest.raises(BadInput, match="has another optimizer in its attribute inner"):
        prepare_lesson(Lesson(lambda: nn.Linear(FEATURES, CLASSES), build))


def test_numbers_drawn_between_steps_do_not_depend_on_the_division_into_microbatches():
    draws = []

    def learn(microbatch):
        lesson = Lesson(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES)))
        learned, numbers = prepare_lesson(lesson), []
        for step in learned.run.steps(make_samples(), global_batch=8, microbatch=microbatch, until=3):
            for batch in step:
                step.backward(compute_mean_loss(learned.model, batch)[0])
            numbers.append(torch.rand(2).tolist())
        draws.append(numbers)

    learn(2)
    learn(8)
    assert draws[0] == draws[1]
    assert draws[0][0] != draws[0][1]


def test_an_ordinary_training_prints_nothing_to_stderr(capsys):
    train_elastic(Lesson(lambda: nn.Linear(FEATURES, CLASSES)))
    assert capsys.readouterr().err == ""


def test_the_code_behind_the_inner_loop_has_the_time_of_a_script(monkeypatch):
    """A worker that validates or draws there is not taken for one that hangs in a step."""
    phases = []
    monkeypatch.setattr(Heartbeat, "beat", lambda _, phase, **__: phases.append(phase))
    train_and_change(prepare_lesson(Lesson(Averaging)), 3, lambda _step: phases.append("script"))
    before = [phases[index - 1] for index, phase in enumerate(phases) if phase == "script"]
    assert before == [Phase.USER] * 3
