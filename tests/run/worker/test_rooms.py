"""Memory of a device that peers map through a door, and slots in it; here it is memory of the host."""

import multiprocessing
import os
import socket
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from elastane.run.worker.links import descriptor_door
from elastane.run.worker.links.descriptor_door import DescriptorDoor, fetch_descriptor
from elastane.run.worker.links.handshake import Process
from elastane.run.worker.links.memory_mark import MARK_BYTES
from elastane.run.worker.state.devices import SideStream
from elastane.run.worker.state.gpu_memory import ROOMS, find_device_memory
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.room_slots import RoomSlots
from elastane.run.worker.state.rooms import Rooms
from elastane.run.worker.state.shared_memory import Section
from tests.run.processes.scripts.rooms import HostMemory
from tests.waiting import WAIT_S, wait_until

from .cuda_streams import Streams

SECTIONS = (Section(torch.float32, 3000), Section(torch.int64, 5))
MARK = bytes(range(MARK_BYTES))
NAME = 7


def describe(door, mark=MARK):
    return SimpleNamespace(door=door, mark=mark, device=HostMemory.identity)


def export(connection):
    """Open a room, fill it, send the name of the door and wait to be killed."""
    rooms = Rooms(HostMemory(), SECTIONS)
    for tensor in rooms.open(NAME):
        tensor.fill_(5)
    connection.send(rooms.open_door(MARK))
    connection.recv()


@pytest.fixture
def exporter():
    """Return a process with a room and a function that kills it."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=export, args=(there,), daemon=True)
    process.start()

    def kill():
        process.kill()
        process.join()

    yield SimpleNamespace(door=here.recv(), kill=kill)
    kill()


def test_what_a_peer_has_mapped_stays_when_its_process_is_killed(exporter):
    rooms = Rooms(HostMemory(), SECTIONS)
    floats, integers = rooms.map(describe(exporter.door), NAME)
    # Killed while it is read.
    first = floats[:1500].clone()
    exporter.kill()
    assert torch.cat([first, floats[1500:]]).unique().tolist() == [5.0]
    assert integers.unique().tolist() == [5]
    assert rooms.map(describe(exporter.door), NAME)[0] is floats


def test_a_room_of_a_killed_process_that_was_never_mapped_is_gone(exporter):
    exporter.kill()
    with pytest.raises(ProcessLookupError):
        Rooms(HostMemory(), SECTIONS).map(describe(exporter.door), NAME)


def test_a_peer_without_the_mark_or_with_a_wrong_name_gets_nothing(exporter):
    assert fetch_descriptor(exporter.door, bytes(MARK_BYTES), NAME) is None
    assert Rooms(HostMemory(), SECTIONS).map(describe(exporter.door), NAME + 1) is None
    assert Rooms(HostMemory(), SECTIONS).map(describe(exporter.door), NAME) is not None


def test_strangers_that_ask_nothing_or_too_little_cost_only_themselves(exporter):
    for sent in (b"", b"half a request"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(f"\0elastane-{exporter.door}")
            stranger.sendall(sent)
        os.close(fetch_descriptor(exporter.door, MARK, NAME))


def test_a_stranger_that_stays_silent_keeps_others_waiting_for_a_moment_only(monkeypatch):
    monkeypatch.setattr(descriptor_door, "REQUEST_S", 0.05)
    door = DescriptorDoor(MARK, {NAME: 0})
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(f"\0elastane-{door.name}")
        os.close(fetch_descriptor(door.name, MARK, NAME))


def test_workers_with_one_kind_of_memory_read_each_others_rooms():
    rooms = Rooms(HostMemory(), SECTIONS)
    assert rooms.can_read(Process(1, 2, 3, 4, MARK, door="ab", device=rooms.identity))
    # In another network namespace, or on another device.
    assert not rooms.can_read(Process(1, 2, 3, 4, MARK, door="ab", device=HostMemory.identity))
    assert not rooms.can_read(Process(1, 2, 3, 4, MARK, door="ab", device="another"))
    assert not rooms.can_read(Process(1, 2, 3, 4, MARK))


# -- slots -------------------------------------------------------------------------------------------------


class Worker:
    """A worker with slots in rooms; the gradient of each virtual rank is a power of two."""

    def __init__(self, *, alone=False, copied=False):
        model = nn.Sequential(nn.Linear(5, 7000), nn.BatchNorm1d(3))
        self.layout = ModelLayout(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self.trained = self.layout.parameter_sections
        rooms = Rooms(HostMemory(), self.layout.sections[: self.trained])
        self.memory = RoomSlots(self.layout, SideStream(self.layout.device), rooms)
        self.gradients = Gradients(self.layout, exact=True, memory=self.memory)
        self.slots = self.gradients.slots
        self.announced = []
        self.gradients.begin_round(4, alone=alone, copied=copied)

    def compute(self, *ranks):
        for rank, following in zip(ranks, [*ranks, None][1:], strict=True):
            self.gradients.begin_leaf(rank, None if following else self.announced.extend, following)
            for number, parameter in enumerate(self.layout.parameters):
                self.gradients._touched.add(number)
                self.gradients._leaf.add({number: torch.full(parameter.shape, 2.0**rank)})
            self.gradients.end_leaf(
                [torch.zeros(e.shape, dtype=self.layout.sections[e.section].dtype) for e in self.buffers]
            )

    @property
    def buffers(self):
        return self.layout.buffer_extents

    def read(self, sections):
        """Return the numbers in the sections of parameters."""
        return sorted({number for each in sections[: self.trained] for number in each.unique().tolist()})

    def reduce(self):
        for block in range(len(self.layout.blocks)):
            parts = [
                (part.spans, self.layout.view_block(self.memory.find_own_sections(part.slot), block), True)
                for part in self.slots.list_parts()
            ]
            self.slots.reduce(block, parts)


def test_nothing_comes_to_the_host_if_all_peers_read_rooms():
    worker = Worker()
    worker.compute(0, 1, 2)
    assert sorted(worker.announced) == list(range(len(worker.layout.blocks)))
    worker.compute(3)
    worker.reduce()
    assert worker.read(worker.memory.place_sums([])) == [15.0]
    assert all(worker.read(arena.tensors) == [0.0] for arena in worker.slots.arenas)


def test_arenas_have_all_sums_if_a_peer_reads_no_rooms():
    worker = Worker(copied=True)
    worker.compute(0, 1, 2)
    assert [worker.read(arena.tensors) for arena in worker.slots.arenas] == [[3.0], [4.0]]
    worker.slots.store_sum(0, torch.full_like(worker.layout.view_block(worker.slots.sums, 0), 9.0))
    assert worker.layout.view_block(worker.slots.sums, 0).unique().tolist() == [9.0]
    assert worker.memory.find_sum(0).unique().tolist() == [9.0]


@pytest.mark.parametrize("alone", [True, False])
def test_arenas_get_all_sums_when_a_peer_without_rooms_appears(alone):
    worker = Worker(alone=alone)
    worker.compute(0, 1, 2)
    worker.slots.share(copied=False)
    assert all(worker.read(arena.tensors) == [0.0] for arena in worker.slots.arenas)
    worker.slots.share(copied=True)
    assert [worker.read(arena.tensors) for arena in worker.slots.arenas] == [[3.0], [4.0]]


def test_blocks_are_announced_when_the_additions_have_ended(monkeypatch):
    streams = Streams(monkeypatch)
    worker = Worker()
    streams.arrival.clear()
    training = threading.Thread(target=worker.compute, args=(0, 1), daemon=True)
    training.start()
    wait_until(lambda: streams.waits, "a thread waits for the additions")
    assert worker.announced == []
    assert all(name.startswith("elastane-sums") for name in streams.waits)
    streams.arrival.set()
    training.join(WAIT_S)
    assert sorted(worker.announced) == list(range(len(worker.layout.blocks)))


def test_a_sum_waits_for_additions_to_its_memory_only_while_they_are_under_way(monkeypatch):
    streams, worker = Streams(monkeypatch), Worker()
    sums = torch.ones_like(worker.layout.view_block(worker.slots.sums, 0))
    worker.compute(0, 1)
    ordered = streams.orders
    worker.slots.store_sum(0, sums)
    assert streams.orders == ordered
    # A death has left virtual ranks that this worker computes, and another one has the sum already.
    worker.gradients.begin_leaf(2, worker.announced.extend)
    ordered = streams.orders
    worker.slots.store_sum(0, sums)
    assert streams.orders == ordered + 1


# -- which device has rooms --------------------------------------------------------------------------------


class Driver:
    """Stands for the driver of a GPU that has these attributes or lacks them."""

    def __init__(self, *, attribute):
        self._attribute = attribute

    def __getattr__(self, _name):
        # Constants.
        return SimpleNamespace(**dict.fromkeys(CONSTANTS, 0))

    def cuDeviceGetAttribute(self, _attribute, _device):  # noqa: N802 - a name of the driver
        return 0, self._attribute


CONSTANTS = (
    "CUDA_SUCCESS",
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
    "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
)


@pytest.mark.parametrize(
    ("device", "wished", "bindings", "has_rooms"),
    [
        ("cpu", "1", Driver(attribute=1), False),
        ("cuda", "0", Driver(attribute=1), False),
        ("cuda", "1", None, False),
        ("cuda", "1", Driver(attribute=0), False),
        ("cuda", "1", Driver(attribute=1), True),
    ],
    ids=["no GPU", "not wished", "no package", "no such memory", "all there"],
)
def test_a_gpu_has_rooms_if_they_are_wished_and_possible(
    monkeypatch, caplog, device, wished, bindings, has_rooms
):
    module = None if bindings is None else SimpleNamespace(driver=bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings", module)
    monkeypatch.setenv(ROOMS, wished)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _index: SimpleNamespace(uuid="GPU-1"))
    memory = find_device_memory(torch.device(device))
    assert (memory is not None) == has_rooms
    # A wish that has no effect has a reason.
    assert bool(caplog.records) == (device == "cuda" and wished == "1" and not has_rooms)
    assert memory is None or memory.identity == "GPU-1"
