"""Time copies in memory: into used memory, and into memory that the kernel must map first; print JSON."""

import json
import mmap
import sys
import time

import torch


def main(nbytes: int, repetitions: int) -> None:
    torch.set_num_threads(1)
    state = torch.ones(nbytes, dtype=torch.uint8)
    fresh = []
    for _ in range(repetitions):
        buffer = torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8)
        fresh.append(time_copy(state, buffer))
    reused = [time_copy(state, buffer) for _ in range(repetitions)]
    print(json.dumps({"copy_s": reused, "copy_to_fresh_s": fresh}))


def time_copy(state: torch.Tensor, buffer: torch.Tensor) -> float:
    begin_s = time.perf_counter()
    buffer.copy_(state)
    return time.perf_counter() - begin_s


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
