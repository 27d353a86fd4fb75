"""Measure what NCCL needs to make a communicator, and to leave one with a dead rank, on a single GPU.

NCCL refuses two ranks on one GPU. With a different ``NCCL_HOSTID`` for each rank it takes them for two
machines. Its traffic passes through sockets then, so only times of beginning and ending say something.
"""

import argparse
import os
import signal
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DEATH_S = 0.5
STEPS = 5


def run_rank(rank: int, world: int, folder: str) -> None:
    os.environ.update(
        NCCL_HOSTID=f"machine-{rank}",
        NCCL_SOCKET_IFNAME="lo",
        GLOO_SOCKET_IFNAME="lo",
        NCCL_IB_DISABLE="1",
        # Otherwise the watchdog ends this process when a peer dies.
        TORCH_NCCL_ASYNC_ERROR_HANDLING="0",
    )
    torch.cuda.set_device(0)
    began = time.perf_counter()
    values = begin_group(f"{folder}/first", rank, world)
    report(rank, f"first communicator of {world} with its first all-reduce", began)
    began = time.perf_counter()
    second = dist.new_group(list(range(world)))
    dist.all_reduce(values, group=second)
    torch.cuda.synchronize()
    report(rank, "second communicator with its first all-reduce", began)
    for _ in range(STEPS):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    if rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(DEATH_S)
    # It waits for the dead rank, unless NCCL has noticed the death; a stream with it never ends by itself.
    with suppress(dist.DistBackendError):
        dist.all_reduce(values)
    began = time.perf_counter()
    dist.distributed_c10d._abort_process_group()
    report(rank, "abort after the death", began)
    began = time.perf_counter()
    begin_group(f"{folder}/again", rank, world - 1)
    report(rank, f"new communicator of the {world - 1} survivors with its first all-reduce", began)
    os._exit(0)


def begin_group(store: str, rank: int, world: int) -> torch.Tensor:
    """Make the default group and its communicator, by a first all-reduce; return the tensor."""
    dist.init_process_group(
        "nccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
        device_id=torch.device("cuda", 0),
    )
    values = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(values)
    torch.cuda.synchronize()
    return values


def report(rank: int, what: str, began: float) -> None:
    if rank == 0:
        print(f"{what}: {time.perf_counter() - began:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=3)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            mp.get_context("spawn").Process(target=run_rank, args=(rank, options.ranks, str(Path(folder))))
            for rank in range(options.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(120)
            if process.is_alive():
                print(f"process {process.pid} hung")
                process.kill()


if __name__ == "__main__":
    main()
