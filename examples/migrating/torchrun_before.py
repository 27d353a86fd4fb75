"""A script for torchrun, with a snapshot after each epoch."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from problem import Net, make_dataset

SNAPSHOT = Path("snapshot.pt")


def save_snapshot(model: torch.nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    # A process that dies here leaves the older snapshot whole.
    torch.save(state, "snapshot.new")
    Path("snapshot.new").replace(SNAPSHOT)


def load_snapshot(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if not SNAPSHOT.exists():
        return 0
    state = torch.load(SNAPSHOT)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = make_dataset()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first = load_snapshot(model, optimizer)
    parallel = DistributedDataParallel(model)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        for points, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(parallel(points), labels)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            save_snapshot(model, optimizer, epoch + 1)
            print(f"epoch {epoch + 1}: loss {loss:.4f}")
    # A wrapped model that outlives the group can hang at the exit.
    del parallel
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
