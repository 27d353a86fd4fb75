"""The pattern of PyTorch's elastic tutorial: DDP, a snapshot after every epoch, and a resume from it.

Each process appends its rank and size to the journal, and rank 0 each epoch that it has completed. An epoch
can be held before its snapshot.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from journal import Journal
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model: torch.nn.Module, loader: DataLoader, folder: Path) -> None:
        self.rank = int(os.environ["RANK"])
        self.loader, self.folder, self.journal = loader, folder, Journal(folder)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.epochs_run = 0
        if (folder / "snapshot.pt").exists():
            snapshot = torch.load(folder / "snapshot.pt")
            self.model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
        self.model = DistributedDataParallel(self.model)

    def save_snapshot(self, epoch: int) -> None:
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
        torch.save(snapshot, self.folder / "snapshot.new")
        (self.folder / "snapshot.new").replace(self.folder / "snapshot.pt")

    def train(self, epochs: int) -> None:
        self.journal.note(f"start {os.environ['RANK']}/{os.environ['WORLD_SIZE']} from {self.epochs_run}")
        for epoch in range(self.epochs_run, epochs):
            self.loader.sampler.set_epoch(epoch)
            for source, target in self.loader:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(source), target).backward()
                self.optimizer.step()
            self.journal.wait_at(epoch)
            if self.rank == 0:
                self.save_snapshot(epoch)
                self.journal.note(f"epoch {epoch} of {dist.get_world_size()}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=8, shuffle=False, sampler=DistributedSampler(data))
    Trainer(torch.nn.Linear(4, 1), loader, options.folder).train(options.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
