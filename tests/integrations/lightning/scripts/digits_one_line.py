"""Trains a classifier of digits as a tutorial of Lightning does, with one changed line: the first import."""

import argparse
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

import elastane.integrations.lightning as L  # noqa: N812 - instead of: import lightning as L

sys.path.insert(0, str(Path(__file__).parents[3] / "run" / "processes" / "scripts"))
import checkpoint_faults
import faults

parser = argparse.ArgumentParser()
parser.add_argument("--paced-from", type=int, default=1 << 30, help="each step waits for its file gate-STEP")
parser.add_argument("--dies-in-checkpoint", type=int, help="this worker dies inside its first checkpoint")
parser.add_argument("--waits-in-checkpoint", type=int, help="a worker waits inside this checkpoint")
parser.add_argument("--whole", action="store_true", help="checkpoints have the optimizer's state, too")
options = parser.parse_args()
faults.pace(options.paced_from)
checkpoint_faults.arm(options.dies_in_checkpoint, options.waits_in_checkpoint)


class LitDigits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = functional.cross_entropy(self.layers(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.layers(images)
        self.log("val_loss", functional.cross_entropy(logits, labels), prog_bar=True)
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
train, val, _ = random_split(data, [512, 200, len(data) - 712])
checkpoints = L.callbacks.ModelCheckpoint(
    monitor="val_loss", save_top_k=2, save_weights_only=not options.whole
)
trainer = L.Trainer(accelerator="cpu", max_epochs=4, callbacks=[checkpoints])
trainer.fit(LitDigits(), DataLoader(train, batch_size=64, shuffle=True), DataLoader(val, batch_size=50))
