"""A script for Ray Train, with 1 to 4 workers, metrics and a checkpoint after each epoch."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.nn.functional as F
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from problem import Net, make_dataset


def train(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    dataset = make_dataset()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    parallel = prepare_model(model)
    loader = prepare_data_loader(DataLoader(dataset, batch_size=32, shuffle=True))
    context = ray.train.get_context()
    for epoch in range(first, config["epochs"]):
        if context.get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for points, labels in loader:
            optimizer.zero_grad()
            scores = parallel(points)
            loss = F.cross_entropy(scores, labels)
            loss.backward()
            optimizer.step()
        accuracy = (scores.argmax(1) == labels).float().mean()
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if context.get_world_rank() == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch + 1,
                }
                torch.save(state, Path(folder) / "state.pt")
                saved = Checkpoint.from_directory(folder)
            metrics = {"loss": loss.item(), "accuracy": accuracy.item()}
            ray.train.report(metrics, checkpoint=saved)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": options.epochs},
        scaling_config=ScalingConfig(num_workers=(1, 4)),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
