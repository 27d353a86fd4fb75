"""Read the files of a checkpoint on request, raw, checked or with `dcp.load`, and print the seconds."""

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load

import workload

IN_CACHE_BYTES = 1 << 20


def main(how: str, checkpoint: Path, size: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    parts = sorted(checkpoint.glob("part-*.distcp"))
    buffers = [bytearray(part.stat().st_size) for part in parts] if how != "dcp" else []
    state = make_state(size) if how == "dcp" else {}
    print("ready", flush=True)
    sys.stdin.readline()
    begin_s = time.perf_counter()
    if how == "dcp":
        load(state, checkpoint_id=checkpoint, no_dist=True)
    for part, into in zip(parts, buffers, strict=False):
        read_file(part, memoryview(into), check=how == "checked")
    print(time.perf_counter() - begin_s)


def read_file(part: Path, view: memoryview, *, check: bool) -> None:
    """Read one file; check it with the checksum that Elastane uses, in pieces that are still in the cache."""
    checksum = xxhash.xxh3_64()
    with part.open("rb", buffering=0) as file:
        while view:
            count = file.readinto(view[:IN_CACHE_BYTES] if check else view)
            if check:
                checksum.update(view[:count])
            view = view[count:]


def make_state(size: str) -> dict[str, Any]:
    """Return the parameters and the optimizer state of the job, in memory that is already mapped."""
    model = workload.GPT(workload.SIZES[size])
    optimizer = workload.make_optimizer(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
