"""What a script changes between two steps is part of the state, also at the end and in a checkpoint."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from elastane.api.errors import BadInput

from .lessons import CLASSES, FEATURES, Lesson, elastic, mean_loss, prepared, samples
from .test_optimizers import pack


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("average", torch.zeros(CLASSES, FEATURES))

    def forward(self, inputs):
        return self.layer(inputs)


class Targeted(nn.Module):
    """A network with a frozen one beside its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
        self.target = nn.Linear(FEATURES, 8).requires_grad_(requires_grad=False)
        self.scale, self.history = 1.0, torch.zeros(2)

    def forward(self, inputs):
        return self.body(inputs)


def trained(learned, steps, between):
    for step in learned.run.steps(samples(), global_batch=8, microbatch=2, until=steps):
        for batch in step:
            step.backward(mean_loss(learned.model, batch)[0])
        between(step)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_buffer_written_after_the_last_step_too_is_what_it_was_written_to(copies):
    learned, expected = prepared(Lesson(Averaging), copies=copies), torch.zeros(CLASSES, FEATURES)

    def between(_step):
        learned.model.average.lerp_(learned.model.layer.weight.detach(), 0.1)
        expected.lerp_(learned.model.layer.weight.detach(), 0.1)

    trained(learned, 4, between)
    assert torch.equal(learned.model.average, expected)
    assert expected.any()


def test_a_joiner_gets_the_state_as_the_script_leaves_it():
    """Frozen parameters, flags, numbers and tensors in attributes, what is kept: all of it."""

    donor, joiner = prepared(Lesson(Targeted)), prepared(Lesson(Targeted))
    for learned in (donor, joiner):
        average = get_ema_multi_avg_fn(0.5)
        learned.run.keep["ema"] = learned.ema = AveragedModel(learned.model.body[0], multi_avg_fn=average)

    def between(step):
        donor.ema.update_parameters(donor.model.body[0])
        donor.model.target.weight.data.mul_(0.5).add_(donor.model.body[0].weight.data, alpha=0.5)
        donor.model.scale, donor.model.history = 0.9**step.number, torch.tensor([1.0, step.loss])
        donor.model.body[1].p = 0.25
        donor.model.body[2].bias.requires_grad_(step.number > 5)
        donor.model.body[0].train(mode=False)

    trained(donor, 3, between)
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


def test_the_digest_of_a_run_covers_what_no_block_holds():
    def digest(change):
        learned = prepared(Lesson(Targeted))
        trained(learned, 2, lambda _step: learned.model.target.weight.data.add_(change))
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

    learned = prepared(
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
        prepared(Lesson(lambda: nn.Linear(FEATURES, CLASSES), build))


def test_numbers_drawn_between_steps_do_not_depend_on_who_computed_what():
    drawn = []

    def learn(microbatch):
        lesson = Lesson(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES)))
        learned, numbers = prepared(lesson), []
        for step in learned.run.steps(samples(), global_batch=8, microbatch=microbatch, until=3):
            for batch in step:
                step.backward(mean_loss(learned.model, batch)[0])
            numbers.append(torch.rand(2).tolist())
        drawn.append(numbers)

    learn(2)
    learn(8)
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_training_alone_is_as_before(capsys):
    """Nothing of all this is seen by a script that does nothing unusual."""
    elastic(Lesson(lambda: nn.Linear(FEATURES, CLASSES)))
    assert capsys.readouterr().err == ""
