"""Show whether a process may read another process's GPU memory after that one was killed.

An exporter allocates memory with CUDA's virtual memory functions and sends a file descriptor of it to this
process, which maps it. Then the exporter is killed: while nothing happens, while this process copies from its
memory, and before this process maps the descriptor at all. Host memory in a memfd outlives its process so.

It needs the package ``cuda-bindings`` and a CUDA device. ``python memory_handles.py --gib 1``.
"""

import argparse
import multiprocessing as mp
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import torch
from cuda.bindings import driver  # type: ignore[import-not-found]

SEED = 7
KILL_AFTER_S = 0.002


def call(function: Any, *arguments: Any) -> Any:
    """Call a function of the driver and return its result.

    Raises:
        RuntimeError: the driver returned an error.
    """
    error, *results = function(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{function.__name__}: {error.name}")
    return results[0] if len(results) == 1 else results


def describe_allocation() -> Any:
    described = driver.CUmemAllocationProp()
    described.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    described.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    described.location.id = 0
    described.requestedHandleTypes = FILE_DESCRIPTOR
    return described


FILE_DESCRIPTOR = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def map_handle(handle: Any, size: int) -> int:
    """Map a handle into this process, for reading and writing, and return the address."""
    address = call(driver.cuMemAddressReserve, size, 0, driver.CUdeviceptr(0), 0)
    call(driver.cuMemMap, address, size, 0, handle, 0)
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    call(driver.cuMemSetAccess, address, size, [access], 1)
    return int(address)


class DeviceArray:
    """Memory at an address, as ``torch.as_tensor`` reads it."""

    def __init__(self, address: int, elements: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (elements,),
            "typestr": "<f4",
            "data": (address, False),
            "version": 3,
        }


def view_memory(address: int, size: int) -> torch.Tensor:
    return torch.as_tensor(DeviceArray(address, size // 4), device="cuda")


def make_pattern(elements: int) -> torch.Tensor:
    return torch.randn(elements, device="cuda", generator=torch.Generator("cuda").manual_seed(SEED))


def export(connection: socket.socket, size: int) -> None:
    """Allocate memory, fill it, send its descriptor and wait to be killed."""
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    began = time.perf_counter()
    handle = call(driver.cuMemCreate, size, describe_allocation(), 0)
    created = time.perf_counter()
    memory = view_memory(map_handle(handle, size), size)
    mapped = time.perf_counter()
    memory.copy_(make_pattern(memory.numel()))
    torch.cuda.synchronize()
    descriptor = int(call(driver.cuMemExportToShareableHandle, handle, FILE_DESCRIPTOR, 0))
    exported = time.perf_counter()
    print(
        f"exporter: create {1e3 * (created - began):.1f} ms, map {1e3 * (mapped - created):.1f} ms, "
        f"fill and export {1e3 * (exported - mapped):.1f} ms",
        flush=True,
    )
    socket.send_fds(connection, [b"memory"], [descriptor])
    time.sleep(600)


def begin_exporter(size: int) -> tuple[Any, int]:
    """Start an exporter and return its process and the descriptor that it has sent."""
    here, there = socket.socketpair()
    exporter = mp.get_context("spawn").Process(target=export, args=(there, size), daemon=True)
    exporter.start()
    _, descriptors, _, _ = socket.recv_fds(here, 16, 1)
    return exporter, descriptors[0]


def kill(exporter: Any) -> float:
    """Kill a process and return the seconds until the kernel has ended it."""
    began = time.perf_counter()
    os.kill(exporter.pid, signal.SIGKILL)
    exporter.join()
    return time.perf_counter() - began


def import_memory(descriptor: int, size: int) -> tuple[torch.Tensor, float]:
    """Map the memory of a descriptor; return it and the seconds that this took."""
    began = time.perf_counter()
    handle = call(driver.cuMemImportFromShareableHandle, descriptor, FILE_DESCRIPTOR)
    address = map_handle(handle, size)
    took_s = time.perf_counter() - began
    return view_memory(address, size), took_s


def measure_used_mib() -> int:
    """Return the memory of the GPU in use, as the driver reports it."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) >> 20


def try_idle_death(size: int, pattern: torch.Tensor) -> None:
    exporter, descriptor = begin_exporter(size)
    memory, took_s = import_memory(descriptor, size)
    print(f"import and map: {1e3 * took_s:.1f} ms; equal before the kill: {torch.equal(memory, pattern)}")
    used = measure_used_mib()
    ended_s = kill(exporter)
    print(f"killed; the kernel needed {1e3 * ended_s:.0f} ms to end it")
    print(f"equal after the kill: {torch.equal(memory, pattern)}")
    memory.add_(1)
    print(f"writable after the kill: {torch.equal(memory, pattern + 1)}")
    print(f"GPU memory in use: {used} MiB before, {measure_used_mib()} MiB after")


def try_death_during_copies(size: int, pattern: torch.Tensor) -> None:
    exporter, descriptor = begin_exporter(size)
    memory, _ = import_memory(descriptor, size)
    here = torch.empty_like(memory)
    here.copy_(memory)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(200):
        here.copy_(memory)
    time.sleep(KILL_AFTER_S)
    os.kill(exporter.pid, signal.SIGKILL)
    killed = time.perf_counter()
    exporter.join()
    ended = time.perf_counter()
    torch.cuda.synchronize()
    done = time.perf_counter()
    rate = 200 * 2 * size / (done - began) / 1e9
    print(
        f"killed {1e3 * (killed - began):.1f} ms into 200 copies; "
        f"process gone {1e3 * (ended - began):.1f} ms, copies done {1e3 * (done - began):.1f} ms "
        f"({rate:.0f} GB/s read and written); "
        f"equal: {torch.equal(here, pattern)}"
    )


def try_import_after_death(size: int, pattern: torch.Tensor) -> None:
    exporter, descriptor = begin_exporter(size)
    kill(exporter)
    memory, took_s = import_memory(descriptor, size)
    print(f"imported after the kill in {1e3 * took_s:.1f} ms; equal: {torch.equal(memory, pattern)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="GiB of memory that is shared")
    parser.add_argument("--only", choices=sorted(TRIALS), help="one trial; default: each in its own process")
    options = parser.parse_args()
    size = int(options.gib * 2**30)
    if options.only is None:
        for name in TRIALS:
            print(f"-- {name}", flush=True)
            command = [sys.executable, __file__, "--gib", str(options.gib), "--only", name]
            done = subprocess.run(command, check=False)
            if done.returncode:
                print(f"it failed with code {done.returncode}")
        return
    TRIALS[options.only](size, make_pattern(size // 4))


TRIALS = {
    "killed while idle": try_idle_death,
    "killed during copies": try_death_during_copies,
    "killed before the import": try_import_after_death,
}

if __name__ == "__main__":
    main()
