"""Time a fork of a process that has imported torch, and a copy of the training state; print JSON."""

import json
import os
import sys
import time

import torch

import workload


def main(size: str, repetitions: int) -> None:
    # The forks come first, before any thread of torch has started.
    forks = [time_fork() for _ in range(repetitions)]
    model = workload.GPT(workload.SIZES[size])
    state = torch.cat([p.detach().flatten() for p in model.parameters()]).repeat(3)
    buffer = torch.empty_like(state).fill_(0)
    copies = []
    for _ in range(repetitions):
        begin_s = time.monotonic()
        buffer.copy_(state)
        copies.append(time.monotonic() - begin_s)
    gigabytes = state.numel() * state.element_size() / 1e9
    print(json.dumps({"fork_from_warm_s": forks, "copy_state_s": copies, "copy_gb": gigabytes}))


def time_fork() -> float:
    """Return the seconds from a fork to the end of a child's first computation with a tensor."""
    reading, writing = os.pipe()
    begin_s = time.monotonic()
    child = os.fork()
    if child == 0:
        (torch.ones(1) + 1).item()
        os.write(writing, b".")
        os._exit(0)
    os.read(reading, 1)
    took_s = time.monotonic() - begin_s
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    return took_s


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
