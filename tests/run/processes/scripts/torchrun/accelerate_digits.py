"""A training loop of Accelerate with its own checkpoints, as its documentation describes it.

Each process appends to the journal what it was told, and the main process each epoch that it has completed.
An epoch can be held before its checkpoint.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from journal import Journal
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--epochs", type=int, default=7)
options = parser.parse_args()
journal = Journal(options.folder)
accelerator = Accelerator()
torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.from_numpy(pixels[:64]).float() / 16, torch.from_numpy(labels[:64]))
model = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
saved = sorted(options.folder.glob("epoch-*"))
if saved:
    accelerator.load_state(saved[-1])
first = len(saved)
place = f"{accelerator.process_index}/{accelerator.num_processes}"
journal.note(f"start {place} from {first} in {accelerator.mixed_precision} on {accelerator.device.type}")
for epoch in range(first, options.epochs):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
    journal.wait_at(epoch)
    accelerator.save_state(options.folder / f"epoch-{epoch}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        journal.note(f"epoch {epoch} of {accelerator.num_processes}")
del model, optimizer
accelerator.end_training()
