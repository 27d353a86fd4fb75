"""Write the facts on which figures of a GPU depend, and whether the queue of its kernels drains in order."""

import argparse
import json
import queue
import time
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from elastane.run.protocol import events
from elastane.run.worker.state.devices import SideStream, describe_device
from elastane.run.worker.state.gpu_memory import find_device_memory
from elastane.run.worker.state.slot_memory import GRADIENT_COPIES
from elastane.run.worker.work_queue import OnStream, Work

WORKS = 200
ELEMENTS = 1 << 20
PATIENCE_S = 20
PACKAGES = ("torch", "cuda-bindings", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nixl")


def drain(device: torch.device) -> dict[str, Any]:
    """Issue additions to a queue, and return how long issuing and ending took."""
    ended: queue.SimpleQueue[events.Event | BaseException] = queue.SimpleQueue()
    works = OnStream(ended.put, ended.put, ended.put, SideStream(device))
    target, source = (torch.ones(ELEMENTS, device=device) for _ in range(2))

    def add(number: int) -> events.Event:
        target.add_(source)
        return events.Reduced(1, (number,))

    began = time.perf_counter()
    for number in range(WORKS):
        works.issue(Work(partial(add, number), [target], [source]))
    issued = time.perf_counter()
    answers = [ended.get(timeout=PATIENCE_S) for _ in range(WORKS)]
    done = time.perf_counter()
    assert answers == [events.Reduced(1, (number,)) for number in range(WORKS)], "answers keep the order"
    assert float(target[-1]) == WORKS + 1
    return {
        "queue_issue_us": round(1e6 * (issued - began) / WORKS, 1),
        "queue_end_us": round(1e6 * (done - began) / WORKS, 1),
    }


def find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    memory = find_device_memory(device)
    figures = {
        "describes_itself_as": describe_device(device),
        "packages": {name: found for name in PACKAGES if (found := find_version(name))},
        "rooms": memory is not None,
        "gradient_copies": GRADIENT_COPIES,
        **drain(device),
    }
    if device.type == "cuda":
        figures["free_gib"] = round(torch.cuda.mem_get_info()[0] / 2**30, 1)
    options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
