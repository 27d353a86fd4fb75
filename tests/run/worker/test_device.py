"""Training on a CUDA device in one process; ``tests/run/processes/test_devices.py`` has whole runs on it."""

import multiprocessing
import os
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

from elastane.common.errors import BadInput
from elastane.run.worker import state_meter
from elastane.run.worker.links.descriptor_door import fetch_descriptor
from elastane.run.worker.links.handshake import Process
from elastane.run.worker.state import devices, slot_memory
from elastane.run.worker.state.gpu_memory import ROOMS, find_device_memory
from elastane.run.worker.state.gradient_copier import GradientCopier
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.placement import Mirrored
from elastane.run.worker.state.room_slots import RoomSlots
from elastane.run.worker.state.rooms import Rooms
from elastane.run.worker.state.shared_memory import Section
from elastane.run.worker.state.slot_memory import DeviceSlots, StagedSlots
from elastane.run.worker.state.square_sums import Rows, sum_squares

from .lessons import (
    FEATURES,
    Lesson,
    assert_alike,
    assert_same_bits,
    make_samples,
    prepare_lesson,
    train_elastic,
    train_plain,
)
from .test_gradients import Worker, find_parts, sum_alone
from .test_models import MODELS, build_batch_norm_model, build_mlp
from .test_optimizers import compute_digests, join, large, make_lesson, train_on

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"
)


@pytest.fixture(autouse=True)
def unpinned():
    """Restore the settings of this process that `elastane.run.worker.state.devices` pins."""
    devices.pin_libraries()
    deterministic = torch.are_deterministic_algorithms_enabled()
    filling = torch.utils.deterministic.fill_uninitialized_memory
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = filling
    torch.backends.cudnn.benchmark = benchmark


def build_sgd(model):
    return optim.SGD(model.parameters(), lr=0.05)


def move_to_device(lesson: Lesson) -> Lesson:
    """Return the same lesson on the device."""

    def compute_loss(model, batch):
        return lesson.loss(model, tuple(tensor.to("cuda") for tensor in batch))

    return replace(lesson, model=lambda: lesson.model().to("cuda"), loss=compute_loss)


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_a_model_trains_as_in_a_plain_loop(build):
    learned = train_elastic(move_to_device(Lesson(build)))
    assert isinstance(learned.run._trainer.state.placement, Mirrored)
    assert all(parameter.is_cuda for parameter in learned.model.parameters())
    assert_alike(learned, train_plain(move_to_device(Lesson(build))), tolerance=1e-3)


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_a_model_trains_to_the_same_bits_again_and_sharded(build):
    lesson = move_to_device(Lesson(build))
    first, again, sharded = train_elastic(lesson), train_elastic(lesson), train_elastic(lesson, copies=2)
    assert first.losses == again.losses == sharded.losses
    assert_same_bits(first.model, again.model)
    assert_same_bits(first.model, sharded.model)
    assert first.run.digest == sharded.run.digest


@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_a_joiner_has_its_state_on_the_same_device_as_the_donor(how, copies):
    donor, joiner = join(move_to_device(make_lesson(optim.AdamW, large, **{how: True})), copies=copies)
    for unit in range(donor.state.shards.units):
        theirs, mine = (one.state.shards.read_state(unit) for one in (donor, joiner))
        assert {key: entry.device for key, entry in mine.items()} == {
            key: entry.device for key, entry in theirs.items()
        }
    train_on(donor)
    train_on(joiner)
    assert compute_digests(joiner) == compute_digests(donor)


def compute_autocast_loss(model, batch):
    inputs, targets = batch
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return functional.cross_entropy(model(inputs), targets), None


def test_mixed_precision_trains_to_the_same_bits_sharded():
    lesson = move_to_device(Lesson(build_mlp, loss=compute_autocast_loss))
    assert_same_bits(train_elastic(lesson).model, train_elastic(lesson, copies=2).model)


def test_a_gradient_is_delivered_as_it_was_computed_while_the_device_is_busy():
    copier, delivered = GradientCopier(torch.device("cuda")), []
    busy = torch.randn(2048, 2048, device="cuda")
    for value in range(20):
        for _ in range(5):
            busy = torch.tanh(busy @ busy)
        copier.copy(torch.full((1 << 16,), float(value), device="cuda") + 0 * busy[0, 0], delivered.append)
    copier.wait()
    assert all(tensor.is_pinned() for tensor in delivered)
    assert [tensor.unique().tolist() for tensor in delivered] == [[float(value)] for value in range(20)]


@pytest.mark.parametrize("copies", [None, 2])
def test_gradients_added_on_the_host_give_the_same_bits(monkeypatch, copies):
    lesson = move_to_device(Lesson(build_mlp))
    expected = train_elastic(lesson, copies=copies)
    assert isinstance(expected.run._trainer.state.placement.slots, DeviceSlots)
    monkeypatch.setattr(slot_memory, "GRADIENT_COPIES", 1 << 50)
    staged = train_elastic(lesson, copies=copies)
    assert isinstance(staged.run._trainer.state.placement.slots, StagedSlots)
    assert staged.losses == expected.losses
    assert_same_bits(staged.model, expected.model)
    assert staged.run.digest == expected.run.digest


class DeviceWorker(Worker):
    """The worker of ``test_gradients.py`` with its partial sums on the GPU."""

    device = "cuda"
    make_memory = staticmethod(lambda layout: DeviceSlots(layout, devices.SideStream(layout.device)))


class RoomWorker(Worker):
    """The same with its partial sums in memory that other processes can map."""

    device = "cuda"

    @staticmethod
    def make_memory(layout):
        rooms = Rooms(open_memory(), layout.sections[: layout.parameter_sections])
        return RoomSlots(layout, devices.SideStream(layout.device), rooms)


def open_memory():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ROOMS, "1")
        memory = find_device_memory(torch.device("cuda"))
    if memory is None:
        pytest.skip("workers cannot share memory of this GPU, or cuda-bindings is not installed")
    return memory


@pytest.mark.parametrize("kind", [DeviceWorker, RoomWorker])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_sums_on_the_device_have_the_bits_of_those_on_the_cpu(size, kind):
    worker = kind(size)
    worker.compute(list(range(size)))
    for block in range(len(worker.layout.blocks)):
        worker.gradients.slots.reduce(block, find_parts([worker], block, worker))
    for sums, expected in zip(worker.gradients.slots.sums, sum_alone(size), strict=True):
        assert torch.equal(sums, expected)


SECTIONS = (Section(torch.float32, 1 << 24), Section(torch.float64, 3))


def fill_room(connection):
    rooms = Rooms(open_memory(), SECTIONS)
    for tensor in rooms.open(1):
        tensor.fill_(5)
    torch.cuda.synchronize()
    connection.send(rooms.open_door(bytes(16)))
    connection.recv()


@pytest.mark.parametrize("killed", ["while it is read", "before it is mapped again"])
def test_a_room_stays_when_its_process_is_killed(killed):
    memory, (here, there) = open_memory(), multiprocessing.Pipe()
    exporter = multiprocessing.get_context("spawn").Process(target=fill_room, args=(there,), daemon=True)
    exporter.start()
    peer = Process(exporter.pid, -1, -1, -1, bytes(16), door=here.recv(), device=memory.identity)
    descriptor = fetch_descriptor(peer.door, peer.mark, 1)
    floats, doubles = Rooms(memory, SECTIONS).map(peer, 1)
    read = [floats.clone() for _ in range(20)] if killed == "while it is read" else []
    exporter.kill()
    exporter.join()
    assert all(bool((copy == 5).all()) for copy in read)
    again = memory.map(descriptor, SECTIONS)
    os.close(descriptor)
    assert all(bool((tensor == 5).all()) for tensor in (floats, doubles, *again))


@pytest.mark.parametrize("streams", [1, 2])
def test_blocks_are_on_the_host_when_they_are_announced_while_the_device_is_busy(streams):
    worker = DeviceWorker(2)
    slots, layout = worker.gradients.slots, worker.layout
    trained = [block for block in range(len(layout.blocks)) if not layout.is_buffers(block)]
    seen = {}

    def keep(blocks):
        seen.update({b: layout.view_block(slots.sums, b).clone() for b in blocks if b in trained})

    busy = torch.randn(2048, 2048, device="cuda")
    side = torch.cuda.Stream()
    for rank in range(2):
        worker.gradients.begin_leaf(rank, keep if rank else None)
        with torch.cuda.stream(side if streams == 2 else torch.cuda.current_stream()):
            for number, parameter in enumerate(layout.parameters):
                for _ in range(20):
                    busy = torch.tanh(busy @ busy)
                gradient = torch.full(parameter.shape, 1.0 + number, device="cuda") + 0 * busy[0, 0]
                worker.gradients._touched.add(number)
                slots.memory.deliver({number: gradient}, worker.gradients._leaf.add)
        extents = layout.buffer_extents
        worker.gradients.end_leaf(
            [torch.zeros(e.shape, dtype=layout.sections[e.section].dtype) for e in extents]
        )
    assert sorted(seen) == trained
    for number, extent in enumerate(layout.extents):
        assert extent.view_flat(slots.sums).unique().tolist() == [2.0 + 2 * number]
    assert all(torch.equal(seen[b], layout.view_block(slots.sums, b)) for b in trained)


def test_another_thread_reads_values_after_the_kernels_that_compute_them():
    state = prepare_lesson(move_to_device(Lesson(build_mlp))).run._trainer.state
    trained = state.layout.parameter_sections
    busy = torch.randn(2048, 2048, device="cuda")
    for value in range(1, 6):
        with torch.no_grad():
            for section in state.placement.values[:trained]:
                for _ in range(20):
                    busy = torch.tanh(busy @ busy)
                section.fill_(value).add_(0 * busy[0, 0])
        state.placement.mark_changed(range(len(state.layout.blocks)))
        reactor = threading.Thread(target=state.update_arena, args=(range(state.shards.units),))
        reactor.start()
        reactor.join()
        assert [section.unique().tolist() for section in state.arena.tensors[:trained]] == [[value]] * trained


def test_the_squares_of_a_block_do_not_depend_on_the_other_blocks():
    generator = torch.Generator("cuda").manual_seed(0)
    blocks = [
        torch.randn(length, device="cuda", generator=generator)
        for length in (1 << 20, 5000, 1 << 20, 1, 77_777)
    ]
    rows = [[Rows(block, 1)] for block in blocks]
    together = sum_squares(rows)
    assert together == [sum_squares([some])[0] for some in rows]
    assert together[1:3] == sum_squares(rows[1:3])
    expected = [block.double().square().sum().item() for block in blocks]
    assert [square for (square,) in together] == pytest.approx(expected, rel=1e-12)
    blocks[1][7] = float("inf")
    assert sum_squares(rows)[1] == (float("inf"),)


@pytest.mark.parametrize("way", ["graphed", "compiled"])
def test_graphs_of_a_microbatch_are_exact(monkeypatch, way):
    """Each replay overwrites the gradients of the last one, also while they wait for a sibling."""
    lesson = move_to_device(Lesson(build_mlp, global_batch=8, microbatch=2, data=make_samples(32)))
    computes = {}

    def compute_loss(model, batch):
        # The first call comes after run.prepare, which moves the parameters.
        if model not in computes:
            inputs = torch.randn(2, FEATURES, device="cuda")
            computes[model] = (
                torch.cuda.make_graphed_callables(model, (inputs,))
                if way == "graphed"
                else torch.compile(model, mode="reduce-overhead")
            )
        inputs, targets = (tensor.to("cuda") for tensor in batch)
        return functional.cross_entropy(computes[model](inputs), targets), None

    replayed = replace(lesson, loss=compute_loss)
    learned = train_elastic(replayed)
    assert_alike(learned, train_plain(lesson), tolerance=1e-3)
    monkeypatch.setattr(slot_memory, "GRADIENT_COPIES", 1 << 50)
    staged = train_elastic(replayed)
    assert isinstance(staged.run._trainer.state.placement.slots, StagedSlots)
    assert staged.losses == learned.losses
    assert_same_bits(staged.model, learned.model)


def test_the_training_thread_waits_for_the_device_only_for_the_norms(monkeypatch):
    """The debug mode counts each wait of the host, also those inside of torch."""
    waits = []
    lesson = move_to_device(Lesson(build_mlp, clip=0.05, optimizer=build_sgd, data=make_samples(32)))
    squares = state_meter.sum_squares

    def allow(tensors):
        torch.cuda.set_sync_debug_mode("default")
        waits.append(len(tensors))
        try:
            return squares(tensors)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    monkeypatch.setattr(state_meter, "sum_squares", allow)
    learned = prepare_lesson(lesson)
    data = [tuple(tensor.to("cuda") for tensor in sample) for sample in lesson.data]
    try:
        for step in learned.run.steps(data, global_batch=8, microbatch=2, until=6):
            for batch in step:
                # Not in the rehearsal, which reads losses and digests.
                torch.cuda.set_sync_debug_mode("default" if step.rehearses else "error")
                step.backward(functional.cross_entropy(learned.model(batch[0]), batch[1]))
            torch.cuda.set_sync_debug_mode("default")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) >= 6


def test_parameters_on_two_devices_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to("cuda"))
    with pytest.raises(BadInput, match=r"parameter 1.weight is on cuda:0, the first parameter on cpu"):
        ModelLayout(model, optim.SGD(model.parameters(), lr=0.1))


def test_frozen_parameters_are_part_of_the_layout_on_any_device():
    def build_layout(device):
        torch.manual_seed(0)
        model = build_batch_norm_model().to(device)
        model[0].requires_grad_(requires_grad=False)
        return ModelLayout(model, optim.SGD(model.parameters(), lr=0.1))

    assert build_layout("cuda").digest() == build_layout("cpu").digest()


def test_a_run_on_a_gpu_describes_all_that_its_bits_depend_on():
    train_elastic(move_to_device(Lesson(build_mlp)))
    described = devices.describe_device(torch.device("cuda", 0))
    assert torch.cuda.get_device_name(0) in described
    assert "deterministic=True, benchmark=False" in described
