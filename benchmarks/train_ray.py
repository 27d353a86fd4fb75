"""Train the job under Ray Train's elastic `TorchTrainer`: DDP, with a checkpoint every ten steps.

It runs with a Python that has torch and Ray Train, and need not have Elastane. The loop is that of
`train_torchrun`, with the calls that Ray's documentation recommends.
"""

import os
import tempfile
from contextlib import nullcontext
from pathlib import Path

import ray
import ray.train
import ray.train.torch
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

import job
import ticks
import workload
from ray_cluster import ADDRESS

CHECKPOINT_EVERY_STEPS = 10
RESIZE_EVERY_S = 5.0
"""How often Ray Train considers another size, by default every 60 s. No pause depends on it."""
MOST_WORKERS = 2
STATE = "state.pt"


def train(parsed: job.Job) -> None:
    size = workload.SIZES[parsed.size]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tick_writer = ticks.TickWriter(parsed.out)
    context = ray.train.get_context()
    world, rank = context.get_world_size(), context.get_world_rank()
    bare = workload.GPT(size)
    optimizer = workload.make_optimizer(bare)
    done = restore(bare, optimizer)
    model = ray.train.torch.prepare_model(bare)
    data = workload.Tokens(size.context)
    first = done * parsed.virtual_ranks * size.microbatch
    batches = iter(DataLoader(Subset(data, range(first + rank, len(data), world)), size.microbatch))
    mine = parsed.virtual_ranks // world
    for number in range(done + 1, parsed.steps + 1):
        for microbatch in range(mine):
            tick_writer.record_begin(number)
            inputs, targets = next(batches)
            is_last = microbatch == mine - 1 or not isinstance(model, DistributedDataParallel)
            with nullcontext() if is_last else model.no_sync():
                (workload.compute_loss(model, inputs, targets) / mine).backward()
        optimizer.step()
        optimizer.zero_grad()
        tick_writer.record_end(number, world)
        if number % CHECKPOINT_EVERY_STEPS == 0:
            save(number, bare, optimizer, is_first=rank == 0)


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint into both, if there is one, and return its number of steps."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / STATE)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def save(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, is_first: bool) -> None:
    """Report a step; the first worker adds a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if is_first:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(folder) / STATE)
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step}, checkpoint=checkpoint)


def main() -> None:
    parsed = job.parse_job()
    variables = {"PYTHONPATH": str(job.HERE), "GLOO_SOCKET_IFNAME": "lo"}
    ray.init(address=os.environ[ADDRESS], runtime_env={"env_vars": variables})
    ray.train.torch.TorchTrainer(
        train,
        train_loop_config=parsed,
        scaling_config=ray.train.ScalingConfig(
            num_workers=(1, MOST_WORKERS), elastic_resize_monitor_interval_s=RESIZE_EVERY_S
        ),
        run_config=ray.train.RunConfig(
            storage_path=str(parsed.out / "ray"),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            failure_config=ray.train.FailureConfig(max_failures=-1),
        ),
    ).fit()


if __name__ == "__main__":
    main()
