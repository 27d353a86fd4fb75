"""Trains a classifier of digits with Fabric, as its documentation shows: a loop, a schedule, a validation."""

import argparse
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import elastane.integrations.lightning  # noqa: F401 - registers strategy="elastane"

sys.path.insert(0, str(Path(__file__).parents[3] / "run" / "processes" / "scripts"))
import faults

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--folder", default=".")
parser.add_argument("--paced-from", type=int, default=1 << 30, help="each step waits for its file gate-STEP")
options = parser.parse_args()
faults.record_work()
faults.pace(options.paced_from)

fabric = Fabric(strategy="elastane", accelerator="cpu")
fabric.launch()
fabric.seed_everything(7)

images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
train, val = torch.utils.data.random_split(data, [1500, 297])
model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer = fabric.setup(model, optimizer)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
decay = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
train_loader, val_loader = fabric.setup_dataloaders(DataLoader(train, 64, shuffle=True), DataLoader(val, 100))

for epoch in range(options.epochs):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
        warmup.step()
        fabric.strategy.run.log(train_loss=loss)
    decay.step()
    model.eval()
    with torch.no_grad():
        correct = sum((model(inputs).argmax(1) == targets).sum() for inputs, targets in val_loader)
    accuracy = fabric.all_reduce(correct) / len(val)
    rate = optimizer.param_groups[0]["lr"]
    fabric.strategy.run.log(accuracy=accuracy)
    fabric.strategy.run.print(f"epoch {epoch} accuracy {float(accuracy):.6f} rate {rate!r}")
    fabric.save(Path(options.folder) / f"epoch-{epoch}.ckpt", {"model": model, "epoch": epoch})
