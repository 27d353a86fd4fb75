"""Every optimizer of torch works whole and sharded, with clipping and schedules."""

import json
import math

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from elastane.common.errors import BadInput
from elastane.run.worker.split_adamw import SplitAdamW
from elastane.run.worker.state import shared_optimizer_state
from elastane.run.worker.state.optimizer_shards import ELEMENTWISE
from elastane.run.worker.trainer import read_learning_rates

from .lessons import (
    CLASSES,
    FEATURES,
    Lesson,
    assert_alike,
    assert_same_bits,
    prepare_lesson,
    train_elastic,
    train_plain,
)

RATES = {optim.SGD: 0.1, optim.Adadelta: 1.0, optim.ASGD: 0.1}
ANY = [kind for kind in vars(optim).values() if isinstance(kind, type) and kind is not optim.Optimizer]
REFUSED = (optim.LBFGS, optim.SparseAdam)
WHOLE = [kind for kind in ANY if kind not in REFUSED]


def matrix() -> nn.Module:
    """Build a model with matrices only, as Muon needs."""
    return nn.Sequential(nn.Linear(FEATURES, 8, bias=False), nn.Tanh(), nn.Linear(8, CLASSES, bias=False))


def large() -> nn.Module:
    """Build a model with several blocks and with parameters across their borders."""
    return nn.Sequential(nn.Linear(FEATURES, 4000), nn.BatchNorm1d(4000), nn.Tanh(), nn.Linear(4000, CLASSES))


def make_lesson(kind, build=matrix, **options) -> Lesson:
    rate = RATES.get(kind, 0.01)
    return Lesson(build, lambda model: kind(model.parameters(), lr=rate, **options))


@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.__name__)
def test_every_optimizer_works_as_in_a_plain_loop(kind):
    assert_alike(train_elastic(make_lesson(kind)), train_plain(make_lesson(kind)), tolerance=1e-4)


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_an_optimizer_that_cannot_work_is_refused_by_name(kind):
    with pytest.raises(BadInput, match=kind.__name__):
        prepare_lesson(make_lesson(kind))


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_elementwise_optimizers_give_the_same_bits_in_pieces(kind):
    lesson = make_lesson(kind, large)
    whole, pieces = train_elastic(lesson), train_elastic(lesson, copies=2)
    assert len(pieces.run._trainer.layout.blocks) > 3
    assert_same_bits(whole.model, pieces.model)
    assert whole.run.digest == pieces.run.digest


class Cast(nn.Module):
    """Converts its inputs to a type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(self._dtype)


def large_in_bfloat16() -> nn.Module:
    return nn.Sequential(Cast(torch.bfloat16), *large().to(torch.bfloat16), Cast(torch.float32))


def large_of_two_types() -> nn.Module:
    first, *others = large()
    return nn.Sequential(Cast(torch.bfloat16), first.to(torch.bfloat16), Cast(torch.float32), *others)


def make_split_lesson(build=large_in_bfloat16) -> Lesson:
    return Lesson(build, lambda model: SplitAdamW(model.parameters(), lr=0.01))


@pytest.mark.parametrize("build", [large_in_bfloat16, large_of_two_types])
def test_weights_in_bfloat16_have_the_same_bits_in_pieces(build):
    lesson = make_split_lesson(build)
    whole, pieces = train_elastic(lesson), train_elastic(lesson, copies=2)
    assert len(pieces.run._trainer.layout.blocks) > 3
    assert_same_bits(whole.model, pieces.model)
    assert whole.run.digest == pieces.run.digest


@pytest.mark.parametrize("how", ["foreach", "fused", "amsgrad", "maximize"])
def test_the_ways_to_run_adamw_give_the_same_bits_in_pieces(how):
    lesson = make_lesson(optim.AdamW, large, **{how: True})
    assert train_elastic(lesson).run.digest == train_elastic(lesson, copies=2).run.digest


@pytest.mark.parametrize("kind", [optim.Adafactor, optim.Muon])
def test_an_optimizer_that_is_not_elementwise_cannot_be_sharded(kind):
    with pytest.raises(BadInput, match=f"cannot shard {kind.__name__}"):
        prepare_lesson(make_lesson(kind), copies=2)


def test_a_subclass_of_an_elementwise_optimizer_cannot_be_sharded():
    class Adam(optim.Adam):
        pass

    with pytest.raises(BadInput, match="--copies all"):
        prepare_lesson(make_lesson(Adam), copies=2)


# -- moving ------------------------------------------------------------------------------------------------


def pack(state, values, states) -> bytearray:
    """Return a payload as the receiver gets it."""
    return bytearray().join(state.pack(values, states))


def join(lesson, **wishes):
    """Return a donor that has trained, and a joiner with all of its state."""
    donor = train_elastic(lesson, **wishes).run._trainer
    joiner = prepare_lesson(lesson, **wishes).run._trainer
    everything = range(donor.state.units)
    joiner.state.unpack(pack(donor.state, everything, everything))
    # As at the beginning of a round: the model works on copies of the committed buffers.
    joiner.state.buffers.restore()
    return donor, joiner


def compute_digests(training) -> list[tuple[str, str]]:
    return [training.state.digest(block) for block in range(len(training.layout.blocks))]


def train_on(training) -> None:
    """Take one more step with invented gradients."""
    training.gradients.begin_round(1)
    sums = training.gradients.slots.memory.find_root_sections()
    for values in sums[: training.layout.parameter_sections]:
        values.copy_(torch.linspace(-1, 1, len(values)))
    blocks = range(len(training.layout.blocks))
    placement = training.state.placement
    gradients = placement.place_sums(sums, blocks)
    with training.state.guard.allow_steps():
        training.state.shards.apply(gradients, frozenset(range(training.state.units)), frozenset(), 1.0)
    placement.mark_changed(blocks)


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_a_joiner_that_unpacks_every_unit_has_the_same_state_and_trains_alike(kind, copies):
    donor, joiner = join(make_lesson(kind, large), copies=copies)
    assert compute_digests(joiner) == compute_digests(donor)
    assert_same_bits(donor.state.model, joiner.state.model)
    train_on(donor)
    train_on(joiner)
    assert compute_digests(joiner) == compute_digests(donor)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_joiner_gets_the_low_bits_of_weights_in_bfloat16(copies):
    donor, joiner = join(make_split_lesson(), copies=copies)
    entries = [donor.state.shards.read_state(unit).items() for unit in range(donor.state.shards.units)]
    assert any(key.endswith("low_bits") and entry.any() for some in entries for key, entry in some)
    train_on(donor)
    train_on(joiner)
    assert compute_digests(joiner) == compute_digests(donor)


@pytest.mark.parametrize("kind", [kind for kind in WHOLE if kind not in ELEMENTWISE])
def test_state_of_optimizers_that_cannot_be_sharded_travels_whole(kind):
    donor, joiner = join(make_lesson(kind))
    train_on(donor)
    train_on(joiner)
    assert compute_digests(joiner) == compute_digests(donor)


@pytest.mark.parametrize("how", ["foreach", "fused"])
@pytest.mark.parametrize("copies", [None, 2])
def test_state_keeps_the_memory_order_of_its_parameter(how, copies):
    def images() -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (2, 3, 1)),
            nn.Conv2d(2, 4, (3, 1)).to(memory_format=torch.channels_last),
            nn.Flatten(),
        )

    donor, joiner = join(make_lesson(optim.AdamW, images, **{how: True}), copies=copies)
    train_on(donor)
    train_on(joiner)
    assert compute_digests(joiner) == compute_digests(donor)


def test_nothing_in_a_payload_is_pickled():
    state = train_elastic(make_lesson(optim.Adam, large)).run._trainer.state
    payload = pack(state, range(state.units), range(state.units))
    length = int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8 : 8 + length])
    assert {"groups", "schedule", "scaler", "keep", "metrics"} <= set(header["plain"]["rest"])
    elements = sum(torch.Size(shape).numel() * 4 for _, shape, _ in header["tensors"].values())
    assert len(payload) <= 8 + length + 2 * elements


# -- groups, clipping, schedules ---------------------------------------------------------------------------


def in_groups(model):
    return optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 0.1, "weight_decay": 0.0},
            {"params": model[2].parameters(), "lr": 0.01, "weight_decay": 0.5},
        ]
    )


@pytest.mark.parametrize("copies", [None, 2])
def test_parameter_groups_keep_their_own_rates_and_decays(copies):
    lesson = Lesson(matrix, in_groups)
    assert_alike(train_elastic(lesson, copies=copies), train_plain(lesson))


@pytest.mark.parametrize("copies", [None, 2])
def test_clipping_is_that_of_the_whole_gradient(copies):
    lesson = Lesson(matrix, clip=0.05)
    assert_alike(train_elastic(lesson, copies=copies), train_plain(lesson))


def test_a_gradient_below_the_limit_is_not_clipped():
    assert_same_bits(train_elastic(Lesson(matrix, clip=1e9)).model, train_elastic(Lesson(matrix)).model)


SCHEDULES = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=6),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[3],
    ),
}


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_change_the_rate_after_every_step(name, copies):
    lesson = Lesson(matrix, scheduler=SCHEDULES[name])
    learned, reference = train_elastic(lesson, copies=copies), train_plain(lesson)
    assert_alike(learned, reference)
    assert [g["lr"] for g in learned.optimizer.param_groups] == [
        g["lr"] for g in reference.optimizer.param_groups
    ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_joiner_continues_the_schedule(name):
    lesson = Lesson(matrix, scheduler=SCHEDULES[name])
    donor, joiner = train_elastic(lesson), prepare_lesson(lesson)
    state = donor.run._trainer.state
    joiner.run._trainer.state.unpack(pack(state, [state.units - 1], []))
    for _ in range(3):
        donor.scheduler.step()
        joiner.run._trainer.state.optimizer._opt_called = True
        joiner.scheduler.step()
        assert donor.scheduler.get_last_lr() == joiner.scheduler.get_last_lr()


def test_state_that_arrives_from_another_worker_does_not_disturb_a_description(monkeypatch):
    state = train_elastic(Lesson(matrix)).run._trainer.state
    arriving = nn.Parameter(torch.zeros(2))

    def receive(key):
        # The reactor is another thread; it adds the state of a parameter as it arrives.
        state.optimizer.state[arriving] = {"step": torch.tensor(1.0)}
        return isinstance(key, torch.Tensor)

    before = state.replicated.describe()[0]["optimizer"]
    monkeypatch.setattr(shared_optimizer_state, "_is_parameter", receive)
    assert state.replicated.describe()[0]["optimizer"] == before
    assert arriving in state.optimizer.state


def test_a_hyperparameter_that_cannot_be_sent_is_refused():
    def odd(model):
        return optim.SGD([{"params": model.parameters(), "who": object()}], lr=0.1)

    with pytest.raises(BadInput, match="cannot be given to a joining worker"):
        prepare_lesson(Lesson(matrix, odd))


def test_the_learning_rates_of_a_step_are_those_before_its_schedule() -> None:
    model = nn.Linear(2, 2)
    groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias], "lr": torch.tensor(0.25)}]
    assert read_learning_rates(torch.optim.AdamW(groups, lr=0.1)) == (0.5, 0.25)
    assert read_learning_rates(torch.optim.SGD(model.parameters(), lr=0.5)) == (0.5,)
    assert read_learning_rates(torch.optim.SGD(model.parameters(), lr=math.nan)) == ()
