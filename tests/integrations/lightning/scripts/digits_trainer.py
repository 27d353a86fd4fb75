"""Trains a classifier of digits as a LightningModule, with validation, a schedule and callbacks."""

import argparse
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import elastane.integrations.lightning  # noqa: F401 - registers strategy="elastane"

sys.path.insert(0, str(Path(__file__).parents[3] / "run" / "processes" / "scripts"))
import faults

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--limit", type=int, help="batches of an epoch")
parser.add_argument("--samples", type=int, default=1500, help="of an epoch")
parser.add_argument("--validate-every", type=float, default=1.0, help="part of an epoch")
parser.add_argument("--plateau", action="store_true")
parser.add_argument("--patience", type=int, default=10)
parser.add_argument("--min-delta", type=float, default=0.0)
parser.add_argument("--folder")
parser.add_argument("--paced-from", type=int, default=1 << 30, help="each step waits for its file gate-STEP")
parser.add_argument("--fault", action="append", default=[], help="WORKER:STEP:MOMENT[:SIGNAL]")
options = parser.parse_args()

faults.record_work()
for fault in options.fault:
    faults.arm(fault)
faults.pace(options.paced_from)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.layers(images)
        loss = functional.cross_entropy(logits, labels)
        self.log("train/loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        self.log("train_accuracy", (logits.argmax(1) == labels).float().mean())
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.layers(images)
        self.log("val_loss", functional.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean())

    def test_step(self, batch, batch_idx):
        images, labels = batch
        self.log("test_loss", functional.cross_entropy(self.layers(images), labels))

    def on_train_epoch_end(self):
        metrics = {name: float(value) for name, value in sorted(self.trainer.callback_metrics.items())}
        self.trainer.strategy.run.print(f"epoch {self.current_epoch} step {self.global_step} {metrics}")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        if options.plateau:
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.02, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    rest = len(data) - options.samples - 297
    train, val, _ = torch.utils.data.random_split(data, [options.samples, 297, rest])
    checkpoints = ModelCheckpoint(dirpath=options.folder, monitor="val_loss", save_top_k=2, save_last=True)
    trainer = lightning.Trainer(
        strategy="elastane",
        accelerator="cpu",
        max_epochs=options.epochs,
        accumulate_grad_batches=options.accumulate,
        limit_train_batches=options.limit,
        val_check_interval=options.validate_every,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        callbacks=[
            EarlyStopping("val_loss", options.min_delta, options.patience),
            checkpoints,
            LearningRateMonitor(),
        ],
    )
    trainer.fit(Classifier(), DataLoader(train, 64, shuffle=True), DataLoader(val, 100))
    best = {Path(path).name: float(score) for path, score in checkpoints.best_k_models.items()}
    trainer.strategy.run.print("best", best, "digest", trainer.strategy.run.digest.parameters)
    tested = trainer.test(dataloaders=DataLoader(val, 100), ckpt_path="best", verbose=False)
    trainer.strategy.run.print("tested", tested)


main()
