"""Time new Gloo groups among processes that already have one; rank 0 writes the seconds as JSON."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main(repetitions: int, out: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=world)
    seconds = []
    for _ in range(repetitions):
        dist.barrier()
        begin_s = time.monotonic()
        group = dist.new_group(backend="gloo")
        dist.all_reduce(torch.ones(1), group=group)
        seconds.append(time.monotonic() - begin_s)
    dist.barrier()
    if rank == 0:
        out.write_text(json.dumps(seconds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
