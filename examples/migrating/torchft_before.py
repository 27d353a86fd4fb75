"""A script for torchft: each replica group is a process of its own, started with its number."""

import argparse
import os
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

from problem import Net, make_dataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()

    group, groups = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])

    def load_state(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def copy_state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    torch.manual_seed(0)
    dataset = make_dataset()
    manager = Manager(
        pg=ProcessGroupGloo(),
        min_replica_size=1,
        load_state_dict=load_state,
        state_dict=copy_state,
        replica_id=f"train_{group}",
    )
    model = DistributedDataParallel(manager, Net())
    optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=0.01))
    sampler = DistributedSampler(
        dataset, replica_rank=group, num_replica_groups=groups, group_rank=0, num_replicas=1
    )
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    epoch = 0
    while manager.current_step() < options.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for points, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(points), labels)
            loss.backward()
            optimizer.step()
            if manager.current_step() % 100 == 0:
                print(f"step {manager.current_step()}: loss {loss:.4f}")
            if manager.current_step() >= options.steps:
                break


if __name__ == "__main__":
    main()
