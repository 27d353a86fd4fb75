"""Plain data in attributes of a model and of kept objects is carried bit for bit, or refused by name."""

import math
from collections import OrderedDict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from elastane.common.errors import BadInput
from elastane.run.worker.state.plain_data import (
    NotPlain,
    describe_plain,
    encode_plain,
    is_same,
    restore_plain,
)

from .lessons import CLASSES, FEATURES, Lesson, compute_mean_loss, make_samples, prepare_lesson
from .test_optimizers import pack


def carry(value, present=None):
    tensors = {}
    return restore_plain(describe_plain(value, "value", tensors), tensors, present)


VALUES = [
    None,
    True,
    1,
    1.5,
    -0.0,
    math.inf,
    1 << 80,
    2 + 3j,
    "text\ud800",
    b"\x00\xff",
    (1, (2.0, "three")),
    [1, [2, {3: 4}], []],
    {"a": 1, 2: [3], (4, 5): None},
    {1, 2, 3},
    frozenset({"a"}),
    deque([1, 2], maxlen=2),
    range(3, 9, 2),
    np.float32(0.1),
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.zeros((0, 3)),
    np.array("2026-11-29", dtype="datetime64[D]"),
    torch.arange(3).to(torch.uint16),
    torch.tensor(1.5, dtype=torch.bfloat16),
    [torch.zeros(2), torch.ones(0)],
    torch.float16,
    torch.device("cpu"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_plain_data_is_carried_with_its_bytes_and_types(value):
    assert encode_plain(carry(value)) == encode_plain(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        ([1], (1,)),
        ("1", 1),
        (torch.ones(2000), torch.ones(2000).index_fill_(0, torch.tensor(1000), 1.1)),
        (torch.ones(1), torch.ones(1) * (1 - 1e-6)),
        (torch.zeros(1), -torch.zeros(1)),
        (torch.ones(1), torch.ones(1, dtype=torch.float64)),
        (torch.zeros(2, 0), torch.zeros(0, 2)),
        (np.ones(2, np.float32), np.ones(2)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([[1], 2], [[1, 2]]),
        (["ab", "c"], ["a", "bc"]),
    ],
)
def test_values_with_other_bytes_types_or_order_differ(one, other):
    assert not is_same(one, other)
    assert is_same(one, one)


def test_not_a_number_equals_itself():
    assert is_same(torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert is_same([math.nan], [float("nan")])


def test_an_object_takes_the_values_of_another_in_place():
    mine, theirs = SimpleNamespace(p=0.1, inner=SimpleNamespace(sizes=[1])), None
    theirs = SimpleNamespace(p=0.5, inner=SimpleNamespace(sizes=[2, 3]), new=(1,))
    inner, sizes = mine.inner, mine.inner.sizes
    assert carry(theirs, mine) is mine
    assert (mine.p, mine.new, inner.sizes) == (0.5, (1,), [2, 3])
    assert mine.inner is inner
    assert sizes is inner.sizes
    with pytest.raises(NotPlain, match="no object of SimpleNamespace"):
        carry(theirs)


def test_data_that_contains_itself_has_bytes():
    loop = [1]
    loop.append(loop)
    assert encode_plain(loop) == encode_plain(loop)


@pytest.mark.parametrize("value", [lambda: 0, [nn.Linear(1, 1)], object(), nn.Parameter(torch.ones(1)), len])
def test_other_values_are_not_plain(value):
    with pytest.raises(NotPlain):
        encode_plain(value)


# -- attributes of the model -----------------------------------------------------------------------------


class Configured(nn.Module):
    """A layer with every kind of state in plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.config = SimpleNamespace(scale=1.0, sizes=[1, 2])
        self.layer.config = self.config
        self.history, self.table, self.pair = [0.5], {"a": 1}, (1, 2)
        self.array, self.bank = np.zeros(2000, np.float32), torch.zeros(2000)
        self.ordered = OrderedDict(x=1)
        self.activation = torch.tanh

    def forward(self, inputs):
        return self.activation(self.layer(inputs)) * self.config.scale


def train(learned, steps, between, inside=lambda _model: None):
    for step in learned.run.steps(make_samples(), global_batch=8, microbatch=2, until=steps):
        for batch in step:
            inside(learned.model)
            step.backward(compute_mean_loss(learned.model, batch)[0])
        between(learned.model, step.number)


def hand_over(donor, joiner):
    state = donor.run._trainer.state
    joiner.run._trainer.state.unpack(pack(state, range(state.units), range(state.units)))
    return state


ATTRIBUTES = ("history", "table", "pair", "array", "bank", "ordered", "config")


def change_attributes(model, number):
    model.config.scale = 0.9**number
    model.config.sizes.append(number)
    model.history.append(0.1 * number)
    model.table[number], model.pair = {"nested": (number,)}, (number, model.pair)
    model.array[1000 + number] = 0.1
    model.bank[1000 + number] += 1e-30
    model.ordered.move_to_end("x")
    model.ordered[number] = None


@pytest.mark.parametrize("copies", [None, 2])
def test_a_joiner_receives_lists_dicts_arrays_and_configurations(copies):
    donor, joiner = (prepare_lesson(Lesson(Configured), copies=copies) for _ in range(2))
    train(donor, 3, change_attributes)
    config, history = joiner.model.config, joiner.model.history
    hand_over(donor, joiner)
    for name in ATTRIBUTES:
        assert is_same(getattr(joiner.model, name), getattr(donor.model, name)), name
    assert joiner.model.config is joiner.model.layer.config is config
    assert joiner.model.history is history
    batch = make_samples()[:4]
    losses = [compute_mean_loss(learned.model, batch)[0].item() for learned in (donor, joiner)]
    assert losses[0] == losses[1]


def test_a_change_less_than_torch_prints_is_carried():
    donor, joiner = (prepare_lesson(Lesson(Configured)) for _ in range(2))
    train(donor, 2, lambda model, _: model.bank.data[1000:1001].add_(1e-7))
    hand_over(donor, joiner)
    assert is_same(joiner.model.bank, donor.model.bank)
    assert joiner.model.bank.any()


def test_attributes_that_did_not_change_are_not_carried():
    learned = prepare_lesson(Lesson(Configured))
    train(learned, 2, lambda _model, _number: None)
    assert learned.run._trainer.state.replicated.describe()[0]["attributes"] == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda model: setattr(model, "activation", torch.relu), "activation"),
        (lambda model: setattr(model.layer, "config", SimpleNamespace(scale=2.0)), "layer.config"),
        (lambda model: setattr(model, "history", [torch.relu]), "history"),
    ],
)
def test_an_attribute_that_cannot_be_carried_is_refused_by_name(change, name):
    learned = prepare_lesson(Lesson(Configured))
    with pytest.raises(BadInput, match=f"the attribute {name} was changed between two steps"):
        train(learned, 3, lambda model, _: change(model))


def test_a_list_that_collects_microbatches_is_refused():
    learned = prepare_lesson(Lesson(Configured))
    with pytest.raises(BadInput, match="history differed after the same microbatch was computed twice"):
        train(learned, 2, lambda *_: None, lambda model: model.history.append(1.0))


def test_a_cache_that_a_forward_pass_fills_is_left_alone():
    learned = prepare_lesson(Lesson(Configured))

    def fill(model):
        model.table["cached"] = torch.ones(3)
        model.cached = SimpleNamespace(function=torch.relu)

    train(learned, 3, lambda *_: None, fill)
    assert learned.run._trainer.state.replicated.describe()[0]["attributes"] == []


# -- attributes of kept objects --------------------------------------------------------------------------


class Mean(nn.Module):
    """A metric as those of torchmetrics: its state is in attributes, and its state dict is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.seen, self.values = torch.zeros(()), 0, []

    def update(self, value):
        self.total += value
        self.seen += 1
        self.values.append(torch.tensor(value))
        self.latest = (value, np.float64(value))


class Tally:
    """An object with a state dict that lacks a part of its state."""

    def __init__(self) -> None:
        self.count, self.names = 0, []

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.parametrize("is_kept_before", [True, False])
def test_kept_objects_are_carried_with_what_their_state_dict_lacks(is_kept_before):
    donor, joiner = (prepare_lesson(Lesson(Configured)) for _ in range(2))
    donor.run.keep["mean"], donor.run.keep["tally"] = mean, tally = Mean(), Tally()
    theirs = Mean(), Tally()
    if is_kept_before:
        joiner.run.keep["mean"], joiner.run.keep["tally"] = theirs

    def change(_model, number):
        mean.update(0.1 * number)
        tally.count += 1
        tally.names.append(str(number))

    train(donor, 3, change)
    state = hand_over(donor, joiner)
    if not is_kept_before:
        joiner.run.keep["mean"], joiner.run.keep["tally"] = theirs
    for mine, other in zip((mean, tally), theirs, strict=True):
        for name in ("total", "seen", "values", "latest", "count", "names"):
            assert is_same(getattr(other, name, None), getattr(mine, name, None)), name
    assert joiner.run._trainer.state.replicated.digest_parts() == state.replicated.digest_parts()
    assert joiner.run._trainer.state.replicated.digest() == state.replicated.digest()


# -- hyperparameters and state of the optimizer ----------------------------------------------------------


class Buffered(torch.optim.SGD):
    """An optimizer that counts in its groups, also in nested lists, as RAdam and ScheduleFree do."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        for group in self.param_groups:
            group["k"], group["buffer"] = 0, [[None, None] for _ in range(3)]

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            group["buffer"][group["k"] % 3][0] = group["k"]
        super().step()


def test_a_rehearsal_of_the_optimizer_restores_nested_lists_of_its_groups():
    learned = prepare_lesson(Lesson(Configured, lambda model: Buffered(model.parameters())))
    trainer = learned.run._trainer
    before = encode_plain(learned.optimizer.param_groups[0]["buffer"])
    trainer.state.rehearse(trainer.gradients.slots.sums)
    assert encode_plain(learned.optimizer.param_groups[0]["buffer"]) == before
    assert learned.optimizer.param_groups[0]["k"] == 0


# -- the data --------------------------------------------------------------------------------------------


class Graded:
    """A dataset with samples that depend on an attribute, which the script may change."""

    def __init__(self):
        self.samples, self.noise, self.reads = make_samples(), {"scale": 0.0}, 0
        self.large, self.tensors = list(range(10_000)), (torch.zeros(100_000),)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.reads += 1
        inputs, target = self.samples[index]
        return inputs + self.noise["scale"], target


def train_on(learned, dataset, steps=3, between=lambda _number: None, **wishes):
    for step in learned.run.steps(dataset, global_batch=8, microbatch=2, until=steps, **wishes):
        for batch in step:
            step.backward(compute_mean_loss(learned.model, batch)[0])
        between(step.number)


def test_a_joiner_receives_what_the_script_changes_in_the_dataset():
    donor, joiner = (prepare_lesson(Lesson(Configured)) for _ in range(2))
    mine, theirs = Graded(), Graded()

    def change(number):
        mine.noise["scale"], mine.level = 0.1 * number, number

    train_on(donor, mine, between=change)
    train_on(joiner, theirs, steps=1)
    hand_over(donor, joiner)
    assert (theirs.noise, theirs.level) == (mine.noise, 3)
    assert theirs.large == mine.large
    assert len(theirs.tensors) == 1
    assert theirs.reads < mine.reads


def test_a_dataset_that_changes_while_loaders_have_copies_is_refused():
    learned, dataset = prepare_lesson(Lesson(Configured)), Graded()

    def change(number):
        dataset.noise["scale"] = 0.1 * number

    with pytest.raises(BadInput, match="the attribute noise of the dataset was changed"):
        train_on(learned, dataset, between=change, loaders=1)


def test_a_dataset_that_counts_its_reads_may_have_loaders():
    learned, dataset = prepare_lesson(Lesson(Configured)), Graded()
    train_on(learned, dataset, between=lambda _: dataset[0], loaders=1)
    assert len(learned.run._trainer.state.replicated.describe()[0]["dataset"]) == 0


class TestOrder:
    """An order that depends on the model."""

    @staticmethod
    def build(learned):
        def order(epoch):
            weight = float(learned.model.layer.weight.detach().double().sum()) if epoch else 0.0
            generator = torch.Generator().manual_seed(int(weight * 1e9) % (1 << 31))
            return torch.randperm(20, generator=generator).tolist()

        return order

    def test_a_joiner_with_another_order_is_refused(self):
        donor, joiner = (prepare_lesson(Lesson(Configured)) for _ in range(2))
        train_on(donor, make_samples(), steps=4, order=self.build(donor))
        described, tensors = donor.run._trainer.state.replicated.describe()
        assert described["order"][0] == 1
        state = joiner.run._trainer.state

        def receive(number):
            if number == 3:
                joiner.model.layer.bias.add_(1)
                joiner.model.layer.weight.mul_(1.5)
                state.replicated.load(described, tensors)

        with pytest.raises(BadInput, match=r"order\(\d\) does not return the same order"):
            train_on(
                joiner, make_samples(), steps=8, between=torch.no_grad()(receive), order=self.build(joiner)
            )

    def test_a_loader_with_another_order_is_refused(self):
        learned = prepare_lesson(Lesson(Configured))
        # A late loader is not waited for, so it may be found in a later epoch only.
        with pytest.raises(BadInput, match=r"order\(\d\) does not return the same order"):
            train_on(learned, make_samples(), steps=80, order=self.build(learned), loaders=1)


# -- parameters that share memory ------------------------------------------------------------------------


class Views(nn.Module):
    def __init__(self, kind):
        super().__init__()
        whole = torch.randn(CLASSES, FEATURES)
        self.first = nn.Parameter(whole if kind != "apart" else whole[:2])
        self.second = nn.Parameter(whole[2:])
        if kind == "buffer":
            self.first = nn.Parameter(whole[:2])
            self.register_buffer("copy", whole)

    def forward(self, inputs):
        whole = torch.cat([self.first[:2], self.second])
        return nn.functional.linear(inputs, whole)


@pytest.mark.parametrize(("kind", "names"), [("nested", "first and second"), ("buffer", "first and copy")])
def test_parameters_that_share_memory_are_refused_by_name(kind, names):
    with pytest.raises(BadInput, match=f"{names} share memory"):
        prepare_lesson(Lesson(lambda: Views(kind)))


def test_parameters_that_are_parts_of_one_tensor_train():
    prepare_lesson(Lesson(lambda: Views("apart")))
