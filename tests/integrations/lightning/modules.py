"""Small modules and callbacks of Lightning, trained in this process as under plain ``python``."""

import warnings

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.nn import functional

from elastane.integrations.lightning import ElastaneStrategy

from .points import make_loader


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


class Scheduled(PointsModule):
    """Steps a schedule in each step."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Logging(PointsModule):
    """Logs as its attributes say."""

    def __init__(self, log, **options):
        super().__init__()
        self._log, self._options = log, options

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self._log(self, batch, loss)
        return loss


class Recorder(Callback):
    """Records the metrics that callbacks see, and the counters of the Trainer."""

    def __init__(self):
        self.epochs = []

    def on_train_epoch_end(self, trainer, pl_module):
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.epochs.append((trainer.current_epoch, trainer.global_step, trainer.fit_loop.batch_idx, metrics))


def make_module(base=Scheduled):
    torch.manual_seed(5)
    return base()


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
