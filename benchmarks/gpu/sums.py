"""Compare sums of gradients on a GPU with those on the CPU: equal bits, digests, and how fast each is.

Equal bits: a tree of eight addends of any exponent, with subnormal numbers, signed zeros and infinities.
Speed: an addition in place on the GPU and on one thread of the CPU, and the copies between them, with memory
that is pageable, pinned, and a memfd that is registered with CUDA. Without a GPU another part of the CPU's
memory stands for it, to try this script.
"""

import argparse
import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from elastane.run.worker.state.row_sums import sum_word_rows, update_digest

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ADDENDS = 8
REPETITIONS = 5


def make_addends(elements: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Return numbers of any bits but NaN: all exponents, subnormal numbers, signed zeros, infinities."""
    generator = torch.Generator().manual_seed(seed)
    width = dtype.itemsize * 8
    integers = {16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    addends = []
    for _ in range(ADDENDS):
        # Eight bits at a time: randint has no full range of int64.
        raw = torch.randint(0, 256, (elements * width // 8,), generator=generator, dtype=torch.uint8)
        bits = raw.view(integers).view(dtype)
        addends.append(torch.where(bits.isnan(), torch.zeros((), dtype=dtype), bits))
    return addends


def sum_tree(addends: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum in the order of a binary tree."""
    level = [addend.clone() for addend in addends]
    while len(level) > 1:
        level = [left.add_(right) for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def compare_bits() -> dict[str, int]:
    """Return how many sums of each type differ, and how many digests."""
    found = {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        different = digests = 0
        for seed in range(4):
            addends = make_addends(1 << 20, dtype, seed)
            on_cpu = sum_tree(addends)
            there = sum_tree([addend.to(DEVICE) for addend in addends])
            on_gpu = there.cpu()
            digests += digest(there) != digest(on_gpu)
            # inf - inf is NaN on both; the bits of a NaN carry no meaning.
            both_nan = on_cpu.isnan() & on_gpu.isnan()
            integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
            differs = (on_cpu.view(integers) != on_gpu.view(integers)) & ~both_nan
            different += int(differs.sum())
        print(f"tree of {ADDENDS}, {dtype}: {different} of {4 << 20} sums differ between CPU and GPU")
        found[str(dtype)] = different
        found[f"digests of {dtype}"] = digests
    return found


def digest(tensor: torch.Tensor) -> str:
    made = hashlib.sha256()
    update_digest(made, tensor)
    return made.hexdigest()


def time_s(function: Callable[[], object]) -> float:
    """Return the median seconds of a call with all work on the GPU done."""
    function()
    synchronize()
    seconds = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        function()
        synchronize()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def make_memfd(nbytes: int) -> torch.Tensor:
    descriptor = os.memfd_create("sums")
    os.ftruncate(descriptor, nbytes)
    return torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.float32).zero_()


def measure_rates(mib: int) -> dict[str, Any]:
    """Return the GB/s of each operation."""
    nbytes = mib << 20
    elements = nbytes // 4
    device, other = (torch.randn(elements, device=DEVICE) for _ in range(2))
    host, second = torch.randn(elements), torch.randn(elements)
    is_gpu = DEVICE.type == "cuda"
    pinned = torch.randn(elements).pin_memory() if is_gpu else torch.randn(elements)
    shared, registered = make_memfd(nbytes), make_memfd(nbytes)
    began = time.perf_counter()
    status = torch.cuda.cudart().cudaHostRegister(registered.data_ptr(), nbytes, 0) if is_gpu else "no GPU"
    registered_s = time.perf_counter() - began
    rows: list[tuple[str, int, Callable[[], object]]] = [
        ("add in place on the GPU (3 moves)", 3, lambda: device.add_(other)),
        ("add in place on one CPU thread (3 moves)", 3, lambda: host.add_(second)),
        ("sums of rows on the GPU, for a digest", 1, lambda: sum_word_rows(device)),
        ("sums of rows on one CPU thread", 1, lambda: sum_word_rows(host)),
        ("GPU to pageable memory", 1, lambda: host.copy_(device)),
        ("GPU to pinned memory", 1, lambda: pinned.copy_(device, non_blocking=True)),
        ("GPU to a memfd", 1, lambda: shared.copy_(device)),
        ("GPU to a registered memfd", 1, lambda: registered.copy_(device, non_blocking=True)),
        ("pageable memory to the GPU", 1, lambda: device.copy_(host)),
        ("pinned memory to the GPU", 1, lambda: device.copy_(pinned, non_blocking=True)),
        ("a memfd to the GPU", 1, lambda: device.copy_(shared)),
        ("a registered memfd to the GPU", 1, lambda: device.copy_(registered, non_blocking=True)),
    ]
    print(f"{mib} MiB; cudaHostRegister: {status}, {1e3 * registered_s:.0f} ms")
    rates = {name: round(moves * nbytes / time_s(function) / 1e9, 1) for name, moves, function in rows}
    for name, rate in rates.items():
        print(f"  {name}: {rate:.1f} GB/s")
    return {"register_ms": round(1e3 * registered_s, 1), "gb_per_s": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU", torch.__version__)
    figures = {"differ": compare_bits(), **measure_rates(options.mib)}
    if options.json:
        options.json.write_text(json.dumps(figures))
    assert not any(figures["differ"].values()), "sums or digests differ between CPU and GPU"


if __name__ == "__main__":
    main()
