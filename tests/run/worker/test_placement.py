"""A mirrored model trains to the same bits as one in place; here the mirror is other memory of the CPU."""

import os
from itertools import cycle

import pytest
import torch
from torch import optim

from elastane.common.errors import BadInput
from elastane.run.worker import assembly
from elastane.run.worker.state import devices, gpu_locks, placement
from elastane.run.worker.state.gradient_copier import GradientCopier
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.optimizer_shards import ELEMENTWISE
from elastane.run.worker.state.placement import InPlace, Mirrored, choose_placement
from elastane.run.worker.state.slot_memory import DeviceSlots, StagedSlots, are_added_on_device
from tests.run.processes.scripts.rooms import HostMemory

from .lessons import Lesson, assert_same_bits, prepare_lesson, train_elastic
from .test_models import (
    MODELS,
    Counting,
    OfTwoTypes,
    Sometimes,
    build_batch_norm_model,
    build_mlp,
    compute_autocast_loss,
    compute_token_loss,
)
from .test_optimizers import (
    SCHEDULES,
    WHOLE,
    compute_digests,
    in_groups,
    join,
    large,
    make_lesson,
    matrix,
    train_on,
)

SLOTS = {"added there": DeviceSlots, "added on the host": StagedSlots}
THERE, ON_THE_HOST = SLOTS
IN_ROOMS = "added in rooms"


@pytest.fixture(params=[*SLOTS, IN_ROOMS])
def mirrored(request, monkeypatch):
    """Return a function that trains as `elastic` does, with a mirrored model."""

    def train(lesson, how=train_elastic, **wishes):
        with monkeypatch.context() as patch:
            patch.setattr(assembly, "choose_placement", Mirrored)
            if request.param == IN_ROOMS:
                patch.setattr(placement, "find_device_memory", lambda _device: HostMemory())
            else:
                patch.setattr(placement, "choose_slots", SLOTS[request.param])
            return how(lesson, **wishes)

    return train


def assert_bitwise_alike(one, other):
    assert one.losses == other.losses
    assert_same_bits(one.model, other.model)
    assert one.run.digest == other.run.digest


def get_trainer(learned):
    return learned.run._trainer


def name_value(value):
    return getattr(value, "__name__", None)


# Each model with each number of copies and with each way to add gradients, but not with each pair of both:
# gradients are added before the blocks are divided among the copies.
PAIRS_OF_MODELS = [
    (build, copies, way)
    for build, first, second in zip(
        [*MODELS, OfTwoTypes, Sometimes, Counting], cycle(SLOTS), cycle(reversed(SLOTS)), strict=False
    )
    for copies, way in ((None, first), (2, second))
]


@pytest.mark.parametrize(
    ("build", "copies", "mirrored"), PAIRS_OF_MODELS, ids=name_value, indirect=["mirrored"]
)
def test_every_mirrored_model_has_the_bits_of_one_in_place(mirrored, build, copies):
    learned = mirrored(Lesson(build), copies=copies)
    assert isinstance(get_trainer(learned).state.placement, Mirrored)
    assert_bitwise_alike(learned, train_elastic(Lesson(build), copies=copies))


# An optimizer gets the same sums, however they were added. So here each one meets one way to add gradients,
# and the elementwise ones meet the other way in the next test.
@pytest.mark.parametrize(
    ("kind", "mirrored"),
    [(kind, THERE if number % 2 else ON_THE_HOST) for number, kind in enumerate(WHOLE)],
    ids=name_value,
    indirect=["mirrored"],
)
def test_every_optimizer_has_the_bits_of_one_in_place(mirrored, kind):
    assert_bitwise_alike(mirrored(make_lesson(kind)), train_elastic(make_lesson(kind)))


@pytest.mark.parametrize(
    ("kind", "mirrored"),
    [(kind, ON_THE_HOST if kind in WHOLE and WHOLE.index(kind) % 2 else THERE) for kind in ELEMENTWISE],
    ids=name_value,
    indirect=["mirrored"],
)
def test_every_sharded_optimizer_has_the_bits_of_one_in_place(mirrored, kind):
    lesson = make_lesson(kind, large)
    assert_bitwise_alike(mirrored(lesson, copies=2), train_elastic(lesson, copies=2))


LESSONS = {
    "clipping": Lesson(matrix, clip=0.05),
    "groups": Lesson(matrix, in_groups),
    "schedule": Lesson(matrix, scheduler=SCHEDULES["OneCycleLR"]),
    "weights": Lesson(build_mlp, loss=compute_token_loss),
    "mixed precision": Lesson(build_mlp, loss=compute_autocast_loss),
    "short last step": Lesson(build_mlp, global_batch=6, microbatch=2, steps=8),
    "fused": make_lesson(optim.AdamW, large, fused=True),
    "several slots": Lesson(build_mlp, global_batch=12, microbatch=1),
}


@pytest.mark.parametrize("name", LESSONS)
def test_every_way_to_train_has_the_bits_of_one_in_place(mirrored, name):
    assert_bitwise_alike(mirrored(LESSONS[name]), train_elastic(LESSONS[name]))


def test_fast_sums_of_one_worker_have_the_bits_of_those_in_place(mirrored):
    assert_bitwise_alike(
        mirrored(Lesson(build_mlp), convergence="fast"), train_elastic(Lesson(build_mlp), convergence="fast")
    )


# -- placement of values ------------------------------------------------------------------------------------


def is_within(tensor, sections):
    return any(
        section.data_ptr() <= tensor.data_ptr() < section.data_ptr() + section.nbytes for section in sections
    )


def test_in_place_the_model_trains_in_the_memory_that_peers_read():
    state = get_trainer(prepare_lesson(Lesson(build_mlp))).state
    assert isinstance(state.placement, InPlace)
    assert all(is_within(parameter, state.arena.tensors) for parameter in state.model.parameters())


def test_a_mirrored_model_does_not_train_in_the_memory_that_peers_read(mirrored):
    state = get_trainer(mirrored(Lesson(build_mlp), prepare_lesson)).state
    assert not any(is_within(parameter, state.arena.tensors) for parameter in state.model.parameters())


def test_the_arena_gets_new_values_only_before_reads(mirrored):
    learned = mirrored(Lesson(build_mlp))
    state = get_trainer(learned).state
    train_on(get_trainer(learned))
    units = range(state.shards.units)
    stale = [state.view_values(unit, state.arena.tensors).clone() for unit in units]
    state.update_arena(units)
    shown = [state.view_values(unit, state.arena.tensors) for unit in units]
    assert not any(torch.equal(old, new) for old, new in zip(stale, shown, strict=True))
    for parameter, new in zip(state.model.parameters(), shown, strict=True):
        assert torch.equal(parameter.reshape(-1), new)


def test_updating_one_block_of_the_arena_updates_no_other(mirrored):
    state = get_trainer(mirrored(Lesson(large), prepare_lesson, copies=2)).state
    state.update_arena(range(state.shards.units))
    with torch.no_grad():
        for values in state.placement.values[: state.layout.parameter_sections]:
            values.fill_(7)
    state.placement.mark_changed(range(len(state.layout.blocks)))
    state.update_arena([1])
    found = [bool((state.layout.view_block(state.arena.tensors, block) == 7).all()) for block in range(3)]
    assert found == [False, True, False]


def test_new_values_of_a_unit_change_nothing_else_in_the_model(mirrored):
    state = get_trainer(mirrored(Lesson(build_mlp), prepare_lesson)).state
    before = [parameter.clone() for parameter in state.model.parameters()]
    # Neighbours of this unit in the same block are older in the arena than in the model.
    state.arena.tensors[0].fill_(3)
    state.update_model(1)
    after = list(state.model.parameters())
    assert (after[1] == 3).all()
    assert all(torch.equal(before[n], after[n]) for n in (0, 2, 3))


@pytest.mark.parametrize(
    ("kind", "copies", "mirrored"),
    [
        (optim.AdamW, None, THERE),
        (optim.AdamW, 2, ON_THE_HOST),
        (optim.SGD, None, ON_THE_HOST),
        (optim.SGD, 2, THERE),
        (optim.NAdam, None, THERE),
        (optim.NAdam, 2, ON_THE_HOST),
        (optim.AdamW, None, IN_ROOMS),
        (optim.AdamW, 2, IN_ROOMS),
    ],
    ids=name_value,
    indirect=["mirrored"],
)
def test_a_mirrored_joiner_receives_all_state_and_trains_alike(mirrored, kind, copies):
    lesson = make_lesson(kind, large)
    donor, joiner = mirrored(lesson, join, copies=copies)
    assert (
        compute_digests(joiner)
        == compute_digests(donor)
        == compute_digests(get_trainer(train_elastic(lesson, copies=copies)))
    )
    assert_same_bits(donor.state.model, joiner.state.model)
    train_on(donor)
    train_on(joiner)
    assert compute_digests(joiner) == compute_digests(donor)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_joiner_receives_what_the_script_changed_after_others_had_read_the_values(mirrored, copies):
    donor = get_trainer(mirrored(Lesson(build_mlp), copies=copies))
    joiner = get_trainer(mirrored(Lesson(build_mlp), prepare_lesson, copies=copies))
    everything = range(donor.state.units)
    donor.state.update_arena(range(donor.state.shards.units))
    with torch.no_grad():
        for parameter in donor.state.model.parameters():
            parameter.mul_(2)
    donor.state.adopt_changes(first=False, begins=False)
    joiner.state.unpack(bytearray().join(donor.state.pack(everything, everything)))
    assert compute_digests(joiner) == compute_digests(donor)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_mirrored_worker_and_one_in_place_can_exchange_state(mirrored, copies):
    donor = get_trainer(mirrored(Lesson(build_batch_norm_model), copies=copies))
    joiner = get_trainer(prepare_lesson(Lesson(build_batch_norm_model), copies=copies))
    everything = range(donor.state.units)
    joiner.state.unpack(bytearray().join(donor.state.pack(everything, everything)))
    assert compute_digests(joiner) == compute_digests(donor)


# -- the copier -------------------------------------------------------------------------------------------


def test_gradients_are_delivered_in_order_and_unchanged():
    copier, delivered = GradientCopier(torch.device("cpu")), []
    gradient = torch.zeros(3)
    for value in range(50):
        copier.copy({value: gradient.fill_(value)}, delivered.append)
    copier.wait()
    assert [tensor[0].item() for copies in delivered for tensor in copies.values()] == list(range(50))
    assert [list(copies) for copies in delivered] == [[value] for value in range(50)]


def test_an_error_in_a_delivery_is_raised_in_the_training_thread():
    copier = GradientCopier(torch.device("cpu"))

    def fail(_gradients):
        raise RuntimeError("a slot is gone")

    copier.copy({0: torch.zeros(1)}, fail)
    with pytest.raises(RuntimeError, match="a slot is gone"):
        copier.wait()
    copier.wait()


# -- devices -----------------------------------------------------------------------------------------------


def test_a_model_on_the_cpu_is_trained_in_place():
    model = build_mlp()
    layout = ModelLayout(model, optim.SGD(model.parameters(), lr=0.1))
    assert layout.device == torch.device("cpu")
    assert isinstance(choose_placement(layout), InPlace)


def test_a_buffer_on_another_device_than_the_parameters_is_named():
    model = build_batch_norm_model()
    model[1].running_mean = model[1].running_mean.to("meta")
    with pytest.raises(BadInput, match=r"buffer 1.running_mean is on meta"):
        ModelLayout(model, optim.SGD(model.parameters(), lr=0.1))


def test_a_device_adds_gradients_if_it_has_the_memory_for_all_partial_sums():
    # AdamW's moments, nine slots and a waiting gradient of a model with 1 billion fp32 parameters.
    assert are_added_on_device(4 << 30, 8 << 30, 96 << 30)
    assert not are_added_on_device(4 << 30, 8 << 30, 95 << 30)


@pytest.mark.parametrize(
    ("count", "visible", "expected"),
    [
        (1, None, ["0"]),
        (2, "4, 7", ["4", "7"]),
        (2, "GPU-aaaa,GPU-bbbb", ["GPU-aaaa", "GPU-bbbb"]),
        (3, "0,1,2,-1,5", ["0", "1", "2"]),
    ],
)
def test_gpus_have_the_names_of_cuda_visible_devices(count, visible, expected):
    assert gpu_locks.list_gpu_names(count, visible) == expected


def test_a_worker_sees_the_gpu_that_it_has_locked(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(gpu_locks, "find_lock_directory", lambda: tmp_path / "claims")
    monkeypatch.setenv(gpu_locks.VISIBLE, "4,7")
    gpu_locks.assign_gpu(1)
    assert os.environ[gpu_locks.VISIBLE] == "7"


def test_the_description_of_a_gpu_has_the_settings_that_decide_bits(monkeypatch):
    before = devices.describe_numerics()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark)
    assert devices.describe_numerics() != before


def test_training_on_the_cpu_changes_no_choice_of_kernels():
    devices.pin_libraries()
    before = devices.describe_numerics()
    prepare_lesson(Lesson(build_mlp))
    assert devices.describe_numerics() == before
    assert devices.describe_device(torch.device("cpu")) == torch.backends.cpu.get_cpu_capability()
