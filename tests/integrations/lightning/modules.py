"""A small module and its data, trained in this process as under plain ``python``."""

import warnings
from datetime import timedelta

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from elastane.integrations.lightning import ElastaneStrategy


class Points(Dataset):
    """Points in the plane, and whether they are above the diagonal."""

    def __init__(self, length=40):
        self.inputs = torch.randn(length, 2, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        point = self.inputs[index]
        return point, (point[0] > point[1]).long()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Points())


class PointsModule(lightning.LightningModule):
    """Classifies points."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = functional.cross_entropy(self.layer(inputs), targets)
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        self.log("val_loss", functional.cross_entropy(self.layer(inputs), targets))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_loader(**options):
    return DataLoader(Points(), **({"batch_size": 8, "shuffle": True} | options))


def fit(module=None, loader=None, val=None, *, ckpt_path=None, microbatch=None, folder=None, **options):
    """Train a module alone and return its Trainer."""
    settings = {
        "strategy": ElastaneStrategy(microbatch=microbatch),
        "accelerator": "cpu",
        "max_epochs": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(**(settings | options))
        trainer.fit(
            module or PointsModule(), make_loader() if loader is None else loader, val, ckpt_path=ckpt_path
        )
    return trainer


HOUR = timedelta(hours=1)
