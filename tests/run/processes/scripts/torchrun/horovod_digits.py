"""Horovod's elastic MNIST example, as its documentation describes it; only the import is changed.

Each process appends to the journal what it has trained on. It can be held after a commit, at EPOCH-BATCH.
"""

import argparse
from pathlib import Path

import torch
from journal import Journal
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import elastane.integrations.horovod as hvd

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=96)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.01)
options = parser.parse_args()
journal = Journal(options.folder)

hvd.init()
torch.manual_seed(42)
pixels, labels = load_digits(return_X_y=True)
data = TensorDataset(
    torch.from_numpy(pixels[: options.samples]).float() / 16, torch.from_numpy(labels[: options.samples])
)
sampler = hvd.elastic.ElasticSampler(data)
loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def scale_learning_rate() -> None:
    for group in optimizer.param_groups:
        group["lr"] = options.lr * hvd.size()
    journal.note(f"reset {hvd.rank()}/{hvd.size()}")


def train_epoch(state: hvd.elastic.State) -> None:
    for number, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        state.sampler.record_batch(number, options.batch_size)
        indices = state.sampler.get_indices(number, options.batch_size)
        journal.note(f"trained {state.epoch} " + ",".join(map(str, indices)))
        state.batch += 1
        state.commit()
        if hvd.rank() == 0:
            journal.note(f"batch {state.epoch}-{state.batch}")
        journal.wait_at(f"{state.epoch}-{state.batch}")


@hvd.elastic.run
def train(state: hvd.elastic.State) -> None:
    journal.note(f"start {hvd.rank()}/{hvd.size()} from {state.epoch}-{state.batch}")
    while state.epoch < options.epochs:
        train_epoch(state)
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)
        state.commit()
    if hvd.rank() == 0:
        journal.note(f"end {optimizer.param_groups[0]['lr']:.3f} {hvd.size()}")


state = hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0, sampler=sampler)
state.register_reset_callbacks([scale_learning_rate])
train(state)
hvd.shutdown()
