"""fp16 with a scaler makes the decisions of a plain loop, with the same bits on every worker."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.optim import lr_scheduler

from elastane.common.errors import RunFailed
from elastane.run.protocol.commit import compute_outcome
from elastane.run.protocol.messages import Vote

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
from .test_optimizers import compute_digests, join, large, pack, train_on

HUGE = 2.0**24


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


def in_half(model, batch):
    inputs, targets = batch
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(inputs)
    return functional.cross_entropy(logits.float(), targets), None


def scaler_from(scale: float, **wishes):
    return lambda: GradScaler("cpu", init_scale=scale, **{"growth_interval": 3} | wishes)


def make_lesson(build=mlp, scale=HUGE, **wishes) -> Lesson:
    chosen = {"loss": in_half, "scaler": scaler_from(scale), "steps": 16} | wishes
    return Lesson(build, **chosen)


# -- the decisions of a plain loop ---------------------------------------------------------------------------


@pytest.mark.parametrize("build", [mlp, with_batch_norm, large], ids=lambda build: build.__name__)
def test_with_one_virtual_rank_the_bits_are_those_of_a_plain_loop(build):
    lesson = make_lesson(build, global_batch=4, microbatch=4)
    learned, reference = train_elastic(lesson), train_plain(lesson)
    assert 0 < len(learned.skipped) < lesson.steps
    assert learned.skipped == reference.skipped
    assert learned.scales == reference.scales
    assert learned.losses == reference.losses
    assert_same_bits(learned.model, reference.model)
    assert learned.scaler.state_dict() == reference.scaler.state_dict()


@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_any_growth_factor_changes_the_scale_as_in_a_plain_loop(factor):
    scaler = scaler_from(HUGE, growth_factor=factor, backoff_factor=1 / factor, growth_interval=2)
    lesson = make_lesson(scaler=scaler, global_batch=4, microbatch=4)
    learned, reference = train_elastic(lesson), train_plain(lesson)
    assert learned.scales == reference.scales
    assert learned.skipped == reference.skipped != []
    assert_same_bits(learned.model, reference.model)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("schedule", [None, lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9)])
def test_with_several_virtual_ranks_clipping_and_a_schedule_it_trains_as_in_a_plain_loop(clip, schedule):
    lesson = make_lesson(clip=clip, scheduler=schedule)
    learned, reference = train_elastic(lesson), train_plain(lesson)
    assert learned.skipped == reference.skipped != []
    assert learned.scales == reference.scales
    assert_alike(learned, reference, tolerance=2e-3)
    assert [g["lr"] for g in learned.optimizer.param_groups] == [
        g["lr"] for g in reference.optimizer.param_groups
    ]


def test_a_power_of_two_does_not_change_a_bit():
    scaled = train_elastic(make_lesson(scale=2.0**4, loss=Lesson(mlp).loss, steps=6))
    assert scaled.skipped == []
    assert_same_bits(scaled.model, train_elastic(Lesson(mlp)).model)


def test_the_reported_loss_is_unscaled_also_in_a_skipped_step():
    lesson = make_lesson(scale=2.0**60, steps=3)
    learned = train_elastic(lesson)
    assert learned.skipped == [1, 2, 3]
    assert learned.losses[0] == pytest.approx(train_plain(lesson).losses[0], rel=1e-3)


def test_a_skipped_step_changes_buffers_but_neither_parameters_nor_optimizer():
    learned = train_elastic(make_lesson(with_batch_norm, scale=2.0**60, steps=2))
    torch.manual_seed(0)
    fresh = with_batch_norm()
    for parameter, untouched in zip(learned.model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(parameter, untouched)
    assert not learned.optimizer.state
    assert learned.model[1].num_batches_tracked == 2
    assert not torch.equal(learned.model[1].running_mean, fresh[1].running_mean)


def test_a_disabled_scaler_does_nothing():
    disabled = Lesson(mlp, scaler=lambda: GradScaler("cpu", enabled=False))
    assert_same_bits(train_elastic(disabled).model, train_elastic(Lesson(mlp)).model)


def test_weighted_losses_are_scaled_too():
    def by_tokens(model, batch):
        inputs, targets = batch
        kept = targets != 0
        return functional.cross_entropy(model(inputs)[kept], targets[kept], reduction="sum"), float(
            kept.sum()
        )

    assert_same_bits(
        train_elastic(make_lesson(loss=by_tokens, scale=2.0**8, steps=6)).model,
        train_elastic(Lesson(mlp, loss=by_tokens)).model,
    )


def test_a_gradient_that_overflows_at_every_scale_ends_the_run():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            return values.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * math.inf

    def compute_loss(model, batch):
        return Broken.apply(Lesson(mlp).loss(model, batch)[0]), None

    with pytest.raises(RunFailed, match="scale has fallen to zero"):
        train_elastic(make_lesson(loss=compute_loss, scale=2.0**-140, steps=40))


# -- values that are not finite ---------------------------------------------------------------


def spoil(learned, places) -> float:
    """Put infinities or NaNs into ordinary sums, and return their norm as a vote measures it."""
    training = learned.run._trainer
    for sums in training.gradients.slots.sums[: training.layout.parameter_sections]:
        sums.fill_(0.5)
    for section, place, value in places:
        training.gradients.slots.sums[section][place] = value
    parameters = [n for n in range(len(training.layout.blocks)) if not training.layout.is_buffers(n)]
    measured = training.reactor.meter.measure(1, tuple(parameters), ())
    vote = Vote(generation=1, round=1, leaves=(), norms=measured.norms)
    return compute_outcome(1, 1, {}, {0: vote}).norm_squared


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_any_elements_that_are_not_finite_make_the_norm_not_finite(dtype):
    learned = prepare_lesson(Lesson(lambda: large().to(dtype), scaler=scaler_from(1.0)))
    next(iter(learned.run.steps(Lesson(mlp).data, global_batch=8, microbatch=2, until=1)))
    assert math.isfinite(spoil(learned, []))
    size = sum(parameter.numel() for parameter in learned.model.parameters())

    @settings(max_examples=12)
    @given(
        values=st.lists(st.sampled_from([math.inf, -math.inf, math.nan]), min_size=1, max_size=3),
        place=st.integers(-1, size - 1),
    )
    @example(values=[math.inf, -math.inf], place=4097)
    @example(values=[math.inf, -math.inf], place=0)
    @example(values=[math.nan], place=-1)
    def spoil_elements(values, place):
        assert not math.isfinite(spoil(learned, [(0, place - shift, v) for shift, v in enumerate(values)]))

    spoil_elements()


def test_infinities_in_different_blocks_do_not_cancel_and_huge_norms_do_not_raise():
    votes = {
        0: Vote(generation=1, round=1, leaves=(), norms={0: (math.inf,), 1: (1e308,)}),
        1: Vote(generation=1, round=1, leaves=(), norms={2: (math.nan,), 3: (1e308,)}),
    }
    assert math.isnan(compute_outcome(1, 1, {}, votes).norm_squared)
    finite = {0: Vote(generation=1, round=1, leaves=(), norms={0: (1e308,), 1: (1e308,)})}
    assert compute_outcome(1, 1, {}, finite).norm_squared == math.inf


def test_a_sum_of_finite_gradients_that_overflows_is_noticed():
    # Each microbatch adds a quarter of 2**129; two of them are still finite in fp32, four are not.
    lesson = make_lesson(
        loss=lambda model, _batch: ((model[0].bias * 4.0).sum(), None), scale=2.0**127, steps=1
    )
    assert train_elastic(lesson).skipped == [1]


# -- any number of workers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [mlp, with_batch_norm, large], ids=lambda build: build.__name__)
def test_sharded_scaling_gives_the_same_bits(build):
    lesson = make_lesson(build, clip=0.1)
    whole, pieces = train_elastic(lesson), train_elastic(lesson, copies=2)
    assert whole.skipped == pieces.skipped != []
    assert whole.scales == pieces.scales
    assert whole.run.digest == pieces.run.digest
    assert_same_bits(whole.model, pieces.model)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_joiner_receives_scale_and_growth(copies):
    scaler = scaler_from(HUGE, growth_interval=100)
    donor, joiner = join(make_lesson(large, scaler=scaler), copies=copies)
    assert joiner.scaling.scaler.state_dict() == donor.scaling.scaler.state_dict()
    assert donor.scaling.scaler.state_dict()["_growth_tracker"] > 0
    train_on(donor)
    train_on(joiner)
    assert compute_digests(joiner) == compute_digests(donor)


def test_after_only_skipped_steps_a_joiner_has_no_optimizer_state():
    lesson = make_lesson(scale=2.0**60, steps=2)
    donor, joiner = join(lesson)
    assert donor.scaling.scaler.get_scale() == joiner.scaling.scaler.get_scale() == 2.0**58
    train_on(donor)
    train_on(joiner)
    assert compute_digests(joiner) == compute_digests(donor)


def test_the_state_of_a_scaler_is_restored_from_json_exactly():
    state = train_elastic(
        make_lesson(scaler=scaler_from(HUGE, growth_factor=1.1), steps=9)
    ).run._trainer.state
    other = prepare_lesson(make_lesson(scaler=scaler_from(HUGE, growth_factor=1.7)))
    other.run._trainer.state.unpack(pack(state, [state.units - 1], []))
    assert other.scaler.state_dict() == state.scaling.scaler.state_dict()


# -- parameters of half precision ----------------------------------------------------------------------------


def in_bfloat16() -> nn.Module:
    return nn.Sequential(mlp(), nn.Dropout(0.1)).to(torch.bfloat16)


def of_bfloat16(model, batch):
    inputs, targets = batch
    return functional.cross_entropy(model(inputs.bfloat16()).float(), targets), None


@pytest.mark.parametrize("build", [in_bfloat16, lambda: large().to(torch.bfloat16)], ids=["small", "large"])
def test_a_bfloat16_model_trains_to_the_same_bits_whole_and_sharded(build):
    lesson = Lesson(build, loss=of_bfloat16)
    whole, pieces = train_elastic(lesson), train_elastic(lesson, copies=2)
    assert whole.run.digest == pieces.run.digest
    assert next(whole.model.parameters()).dtype == torch.bfloat16
    donor, joiner = join(lesson)
    train_on(donor)
    train_on(joiner)
    assert compute_digests(joiner) == compute_digests(donor)


def test_a_bfloat16_model_with_one_virtual_rank_equals_that_of_a_plain_loop():
    lesson = Lesson(in_bfloat16, loss=of_bfloat16, global_batch=4, microbatch=4)
    assert_same_bits(train_elastic(lesson).model, train_plain(lesson).model)


def test_a_float16_model_is_scaled_whole_and_sharded():
    def of_float16(model, batch):
        inputs, targets = batch
        return functional.cross_entropy(model(inputs.half()).float(), targets), None

    lesson = make_lesson(lambda: mlp().half(), loss=of_float16, optimizer=sgd)
    whole, pieces = train_elastic(lesson), train_elastic(lesson, copies=2)
    assert whole.skipped == pieces.skipped != []
    assert whole.run.digest == pieces.run.digest
    assert all(parameter.isfinite().all() for parameter in whole.model.parameters())


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
