"""Time a fork of a process that has imported torch, and a copy of the training state; print JSON."""

import json
import os
import sys
import time

import torch

import workload


def main(size: str, repetitions: int) -> None:
    # The forks come first, before any thread of torch has started.
    forks = [fork_s() for _ in range(repetitions)]
    model = workload.GPT(workload.SIZES[size])
    state = torch.cat([p.detach().flatten() for p in model.parameters()]).repeat(3)
    room = torch.empty_like(state).fill_(0)
    copies = []
    for _ in range(repetitions):
        begin_s = time.monotonic()
        room.copy_(state)
        copies.append(time.monotonic() - begin_s)
    gigabytes = state.numel() * state.element_size() / 1e9
    print(json.dumps({"fork_from_warm_s": forks, "copy_state_s": copies, "copy_gb": gigabytes}))


def fork_s() -> float:
    """Return the seconds from a fork to the end of a child's first computation with a tensor."""
    ready, said = os.pipe()
    begin_s = time.monotonic()
    child = os.fork()
    if child == 0:
        (torch.ones(1) + 1).item()
        os.write(said, b".")
        os._exit(0)
    os.read(ready, 1)
    took_s = time.monotonic() - begin_s
    os.waitpid(child, 0)
    os.close(ready)
    os.close(said)
    return took_s


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
