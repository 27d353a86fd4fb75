"""Measure rooms: how long a process needs to open and to map one, and whether it outlives its process.

An exporter opens a room, fills it and waits. This process maps it through the exporter's door and reads it
again and again; meanwhile the exporter is killed. On the CPU memory of the host stands for the GPU's.
"""

import argparse
import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from elastane.run.worker.links.descriptor_door import fetch_descriptor
from elastane.run.worker.links.handshake import Process
from elastane.run.worker.links.memory_mark import MARK_BYTES
from elastane.run.worker.state.gpu_memory import find_device_memory
from elastane.run.worker.state.rooms import DeviceMemory, Rooms
from elastane.run.worker.state.shared_memory import Section
from tests.run.processes.scripts.rooms import HostMemory

MARK = bytes(range(MARK_BYTES))
NAME, FILL = 1, 5.0
READS = 200


def open_memory() -> DeviceMemory:
    """Return the memory of the GPU; on a machine without one that of the host.

    Raises:
        RuntimeError: there is a GPU, but processes cannot share its memory.
    """
    if not torch.cuda.is_available():
        return HostMemory()
    memory = find_device_memory(torch.device("cuda"))
    if memory is None:
        raise RuntimeError("processes cannot share memory of this GPU, or cuda-bindings is not installed")
    return memory


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def export(connection: Connection, sections: tuple[Section, ...]) -> None:
    """Open a room, fill it, send the name of the door and the time it took, and wait to be killed."""
    rooms = Rooms(open_memory(), sections)
    synchronize()
    began = time.perf_counter()
    (tensor,) = rooms.open(NAME)
    opened_s = time.perf_counter() - began
    tensor.fill_(FILL)
    synchronize()
    connection.send((rooms.open_door(MARK), opened_s))
    connection.recv()


def measure(mib: int) -> dict[str, Any]:
    sections = (Section(torch.float32, mib << 18),)
    memory, (here, there) = open_memory(), multiprocessing.Pipe()
    exporter = multiprocessing.get_context("spawn").Process(
        target=export, args=(there, sections), daemon=True
    )
    exporter.start()
    door, opened_s = here.recv()
    peer = Process(exporter.pid or -1, -1, -1, -1, MARK, door=door, device=memory.identity)
    refused = fetch_descriptor(door, bytes(MARK_BYTES), NAME) is None
    unmapped = fetch_descriptor(door, MARK, NAME)
    assert unmapped is not None, "the exporter has this room"
    synchronize()
    began = time.perf_counter()
    (tensor,) = Rooms(memory, sections).map(peer, NAME) or ()
    mapped_s = time.perf_counter() - began
    copy = torch.empty_like(tensor)
    copy.copy_(tensor)
    synchronize()
    began = time.perf_counter()
    for _ in range(READS):
        copy.copy_(tensor)
    exporter.kill()
    killed_s = time.perf_counter() - began
    synchronize()
    read_s = time.perf_counter() - began
    exporter.join()
    intact = bool((copy == FILL).all()) and bool((tensor == FILL).all())
    (again,) = memory.map(unmapped, sections)
    os.close(unmapped)
    return {
        "mib": mib,
        "memory": type(memory).__name__,
        "open_ms": round(1e3 * opened_s, 2),
        "map_ms": round(1e3 * mapped_s, 2),
        "killed_after_ms": round(1e3 * killed_s, 1),
        "copies_done_after_ms": round(1e3 * read_s, 1),
        "gb_per_s_read_and_written": round(2 * READS * tensor.nbytes / read_s / 1e9),
        "intact_after_the_kill": intact,
        "mapped_after_the_kill": bool((again == FILL).all()),
        "stranger_refused": refused,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure(options.mib)
    print(json.dumps(figures))
    if options.json:
        options.json.write_text(json.dumps(figures))
    assert all(
        figures[name] for name in ("intact_after_the_kill", "mapped_after_the_kill", "stranger_refused")
    )


if __name__ == "__main__":
    main()
