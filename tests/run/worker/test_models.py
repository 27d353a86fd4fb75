"""Any module trains as in a plain loop."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from elastane.common.errors import BadInput
from elastane.run.worker.state import slot_memory

from .lessons import (
    CLASSES,
    FEATURES,
    Lesson,
    assert_alike,
    assert_same_bits,
    compute_mean_loss,
    make_samples,
    prepare_lesson,
    train_elastic,
    train_plain,
)


def build_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def build_batch_norm_model() -> nn.Module:
    # Without bias: the norm removes it, so its gradient is rounding, which AdamW amplifies.
    return nn.Sequential(
        nn.Linear(FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


def build_dropout_model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES))


@pytest.fixture(params=["after the backward pass", "during it"])
def taken(request, monkeypatch):
    """Gradients are taken after the backward pass, or by hooks as those of a large model."""
    if request.param == "during it":
        monkeypatch.setattr(slot_memory, "HELD_BYTES", 0)


class Tied(nn.Module):
    """Two layers with one weight, as the embedding and the head of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES, bias=False)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(inputs)))


def build_half_frozen_mlp() -> nn.Module:
    model = build_mlp()
    model[0].requires_grad_(requires_grad=False)
    return model


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.head = nn.Linear(4, CLASSES)
        self.to(memory_format=torch.channels_last)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        images = inputs[:, :, None, None].expand(-1, -1, 3, 3)[:, :2].to(memory_format=torch.channels_last)
        return self.head(self.convolution(images).relu().mean((2, 3)))


class OfTwoTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 8)
        self.second = nn.Linear(8, CLASSES, dtype=torch.bfloat16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(inputs)).bfloat16()).float()


MODELS = [build_mlp, build_batch_norm_model, build_dropout_model, Tied, build_half_frozen_mlp, ChannelsLast]


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_a_model_trains_as_in_a_plain_loop(build):
    # AdamW divides by the gradient's own size, so rounding of small ones shows.
    assert_alike(train_elastic(Lesson(build)), train_plain(Lesson(build)), tolerance=1e-3)


def test_parameters_of_two_data_types_train_as_in_a_plain_loop():
    assert_alike(train_elastic(Lesson(OfTwoTypes)), train_plain(Lesson(OfTwoTypes)), tolerance=2e-2)


@pytest.mark.parametrize("build", [*MODELS, OfTwoTypes], ids=lambda build: build.__name__)
def test_a_model_trains_to_the_same_bits_again_and_sharded(build):
    first, again = train_elastic(Lesson(build)), train_elastic(Lesson(build))
    sharded = train_elastic(Lesson(build), copies=2)
    assert first.losses == again.losses == sharded.losses
    assert_same_bits(first.model, again.model)
    assert_same_bits(first.model, sharded.model)
    assert first.run.digest == sharded.run.digest


def test_a_channels_last_weight_stays_channels_last():
    weight = train_elastic(Lesson(ChannelsLast)).model.convolution.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_tied_weights_stay_tied_and_move():
    learned = train_elastic(Lesson(Tied))
    assert learned.model.first.weight is learned.model.second.weight
    assert not torch.equal(learned.model.first.weight, train_plain(Lesson(Tied, steps=1)).model.first.weight)


def test_a_frozen_layer_does_not_move():
    torch.manual_seed(0)
    untrained = build_half_frozen_mlp()
    trained = train_elastic(Lesson(build_half_frozen_mlp)).model
    assert torch.equal(trained[0].weight, untrained[0].weight)
    assert not torch.equal(trained[2].weight, untrained[2].weight)


class HooksItself(nn.Module):
    """A model that registers a hook in its first forward pass and notes it, as in ``transformers``."""

    def __init__(self) -> None:
        super().__init__()
        self.body = build_mlp()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not getattr(self, "is_hooked", False):
            self.body[0].register_forward_hook(lambda _module, _inputs, output: 2 * output)
            self.is_hooked = True
        return self.body(inputs)


@pytest.mark.parametrize("copies", [None, 1])
def test_a_model_that_hooks_itself_once_has_one_hook(copies):
    learned = train_elastic(Lesson(HooksItself), copies=copies)
    assert len(learned.model.body[0]._forward_hooks) == 1
    assert_alike(learned, train_plain(Lesson(HooksItself)), tolerance=1e-3)


class Sometimes(nn.Module):
    """A model with a second layer that only batches with a large first sample use."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(FEATURES, CLASSES)
        self.seldom = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits = self.always(inputs)
        return logits + self.seldom(inputs) if inputs[0, 0] > 0.5 else logits


def build_momentum_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_parameter_without_a_gradient_is_not_moved_by_momentum_or_decay(copies):
    lesson = Lesson(Sometimes, build_momentum_sgd, global_batch=2, microbatch=1, steps=10)
    assert_alike(train_elastic(lesson, copies=copies), train_plain(lesson))


class NeverUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(FEATURES, CLASSES)
        self.unused = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_layer_that_is_never_used_keeps_its_values(copies):
    torch.manual_seed(0)
    untouched = NeverUsed().unused.weight
    assert torch.equal(
        train_elastic(Lesson(NeverUsed, build_momentum_sgd), copies=copies).model.unused.weight, untouched
    )


class Counting(nn.Module):
    """A model that replaces its buffer instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1.0
        return self.layer(inputs)


def test_a_model_that_replaces_its_buffers_keeps_their_values():
    learned = train_elastic(Lesson(Counting, steps=5))
    assert learned.model.seen.item() == 5


def build_lesson_of_words(*, sparse: bool, **wishes) -> Lesson:
    words = torch.arange(24).reshape(8, 3) % 10
    return Lesson(
        lambda: nn.Sequential(nn.Embedding(10, 4, sparse=sparse), nn.Flatten(), nn.Linear(12, CLASSES)),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        data=TensorDataset(words, words[:, 0] % CLASSES),
        **wishes,
    )


@pytest.mark.usefixtures("taken")
def test_sparse_gradients_of_an_embedding_give_the_same_bits_as_dense_ones():
    assert_same_bits(
        train_elastic(build_lesson_of_words(sparse=True)).model,
        train_elastic(build_lesson_of_words(sparse=False)).model,
    )


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("sparse", [True, False])
def test_a_backward_pass_between_steps_has_the_gradients_of_an_embedding(sparse):
    lesson = build_lesson_of_words(sparse=sparse)
    learned = prepare_lesson(lesson)
    embedding = learned.model[0]
    for step in learned.run.steps(lesson.data, global_batch=8, microbatch=2, until=3):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        embedding(torch.tensor([1, 1, 2])).sum().backward()
        assert embedding.weight.grad.to_dense().sum(1).tolist() == [0.0, 8.0, 4.0, *[0.0] * 7]
    assert_same_bits(learned.model, train_elastic(build_lesson_of_words(sparse=sparse, steps=3)).model)


@pytest.mark.usefixtures("taken")
def test_a_late_gradient_of_a_sparse_embedding_is_refused():
    lesson = build_lesson_of_words(sparse=True)
    learned = prepare_lesson(lesson)
    step = next(learned.run.steps(lesson.data, global_batch=8, microbatch=2, until=3))
    with pytest.raises(BadInput, match=r"0\.weight got another gradient after"):  # noqa: PT012
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
            learned.model[0](torch.tensor([1])).sum().backward()


def register_halving(model: nn.Module) -> nn.Module:
    def halve(parameter):
        parameter.grad.mul_(0.5)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    return model


def train_halved(place: str) -> nn.Module:
    """Train with half of each gradient; in a microbatch, with half of those that follow."""
    build = (lambda: register_halving(build_mlp())) if place == "before prepare" else build_mlp
    learned = prepare_lesson(Lesson(build, build_momentum_sgd))
    if place == "after prepare":
        register_halving(learned.model)
    share = 0.5 if place == "in the loss" else 1.0
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=3):
        for batch in step:
            if place == "in a microbatch" and step.number == 2:
                register_halving(learned.model)
                place = ""
            step.backward(share * compute_mean_loss(learned.model, batch)[0])
    return learned.model


@pytest.mark.parametrize("place", ["before prepare", "after prepare", "in a microbatch"])
def test_hooks_of_the_script_may_change_gradients_before_the_run_takes_them(place, monkeypatch):
    held = train_halved(place)
    monkeypatch.setattr(slot_memory, "HELD_BYTES", 0)
    assert_same_bits(held, train_halved(place))
    if place != "in a microbatch":
        assert_same_bits(held, train_halved("in the loss"))


def test_learning_rates_may_be_numbers_of_numpy():
    def build_schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.cos(step / 10))

    lesson = Lesson(build_mlp, build_momentum_sgd, scheduler=build_schedule)
    learned = train_elastic(lesson)
    assert isinstance(learned.optimizer.param_groups[0]["lr"], np.float64)
    assert_alike(learned, train_plain(lesson))


@pytest.mark.usefixtures("taken")
def test_a_layer_may_be_frozen_when_the_training_begins():
    learned = prepare_lesson(Lesson(build_mlp, build_momentum_sgd))
    layer = learned.model[0]
    layer.requires_grad_(requires_grad=False)
    weights = [layer.weight.clone()]
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=2):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        weights.append(layer.weight.detach().clone())
        layer.requires_grad_(requires_grad=True)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def compute_token_loss(model, batch):
    inputs, targets = batch
    kept = targets != 0
    return functional.cross_entropy(model(inputs)[kept], targets[kept], reduction="sum"), float(kept.sum())


def test_a_loss_weighted_by_token_counts_is_the_mean_over_all_tokens():
    lesson = Lesson(build_mlp, loss=compute_token_loss)
    assert_alike(train_elastic(lesson), train_plain(lesson))


def test_a_weight_may_be_a_tensor():
    def compute_loss(model, batch):
        total, weight = compute_token_loss(model, batch)
        return total, torch.tensor(weight)

    assert (
        train_elastic(Lesson(build_mlp, loss=compute_loss)).losses
        == train_elastic(Lesson(build_mlp, loss=compute_token_loss)).losses
    )


@pytest.mark.parametrize("length", [9, 13, 16, 17])
def test_the_short_last_step_of_an_epoch_counts_its_samples_and_no_others(length):
    # 9: one sample in one virtual rank, three empty ones; 13: a short one and one empty one.
    data = TensorDataset(*(tensor[:length] for tensor in Lesson(build_mlp).data.tensors))
    lesson = Lesson(build_batch_norm_model_in_eval, data=data, steps=7)
    assert_alike(train_elastic(lesson), train_plain(lesson))


def build_batch_norm_model_in_eval() -> nn.Module:
    """A batch norm that keeps its statistics for a batch of one sample."""
    model = build_batch_norm_model()
    model[1].eval()
    return model


def compute_autocast_loss(model, batch):
    inputs, targets = batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.cross_entropy(model(inputs), targets), None


def test_mixed_precision_trains_as_in_a_plain_loop_and_to_the_same_bits():
    lesson = Lesson(build_mlp, loss=compute_autocast_loss)
    learned = train_elastic(lesson)
    assert_alike(learned, train_plain(lesson), tolerance=1e-2)
    assert_same_bits(learned.model, train_elastic(lesson, copies=2).model)


def test_fast_sums_learn_the_same_up_to_rounding():
    assert_alike(
        train_elastic(Lesson(build_dropout_model), convergence="fast"),
        train_plain(Lesson(build_dropout_model)),
    )


class Repeated(nn.Module):
    """One layer used three times, as in a universal transformer, recomputed in the backward pass."""

    reentrant = True

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs.detach().requires_grad_()
        for _ in range(3):
            hidden = torch.tanh(checkpoint(self.layer, hidden, use_reentrant=self.reentrant))
        # Once more outside of any checkpoint.
        return self.head(self.layer(hidden))


class RepeatedWithoutReentrance(Repeated):
    reentrant = False


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("microbatch", [8, 2], ids=["one virtual rank", "four"])
@pytest.mark.parametrize("copies", [None, 2])
def test_a_layer_that_is_recomputed_several_times_gets_its_whole_gradient(copies, microbatch):
    kind = {"optimizer": build_momentum_sgd, "microbatch": microbatch}
    learned = train_elastic(Lesson(Repeated, **kind), copies=copies)
    assert_alike(learned, train_plain(Lesson(Repeated, **kind)))
    assert_alike(learned, train_plain(Lesson(RepeatedWithoutReentrance, **kind)))


def compute_loss_with_auxiliary(model, batch):
    inputs, targets = batch
    logits = model(inputs)
    (0.1 * logits.square().mean()).backward(retain_graph=True)
    return functional.cross_entropy(logits, targets), None


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("microbatch", [8, 2], ids=["one virtual rank", "four"])
def test_a_backward_pass_of_the_scripts_own_adds_to_the_gradient(microbatch):
    lesson = Lesson(build_mlp, build_momentum_sgd, loss=compute_loss_with_auxiliary, microbatch=microbatch)
    assert_alike(train_elastic(lesson), train_plain(lesson))


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("microbatch", [8, 2], ids=["one virtual rank", "four"])
@pytest.mark.parametrize("late_at", [0, 1, 2], ids=["rehearsal", "rehearsal again", "microbatch"])
def test_gradients_that_come_after_the_gradient_was_complete_are_refused(microbatch, late_at):
    learned = prepare_lesson(Lesson(build_mlp, build_momentum_sgd))
    steps = learned.run.steps(Lesson(build_mlp).data, global_batch=8, microbatch=microbatch, until=2)
    step = next(steps)
    with pytest.raises(BadInput, match="another gradient after"):  # noqa: PT012
        for number, batch in enumerate(step):
            assert number <= late_at
            step.backward(compute_mean_loss(learned.model, batch)[0])
            if number == late_at:
                compute_mean_loss(learned.model, batch)[0].backward()
