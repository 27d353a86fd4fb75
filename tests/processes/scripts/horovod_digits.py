"""Horovod's elastic MNIST example, as its documentation describes it, on the handwritten digits of sklearn.

Only the import of ``horovod.torch`` is changed.
"""

import argparse
import os
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane.compat.horovod as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--batches-per-commit", type=int, default=5)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each batch takes longer")
args = parser.parse_args()

hvd.init()
torch.manual_seed(42)

pixels, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.from_numpy(pixels).float() / 16, torch.from_numpy(labels))
sampler = hvd.elastic.ElasticSampler(dataset)
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def scale_learning_rate():
    for group in optimizer.param_groups:
        group["lr"] = args.lr * hvd.size()


@hvd.elastic.run
def train(state):
    print(f"rank {hvd.rank()} of {hvd.size()} begins epoch {state.epoch} batch {state.batch}", flush=True)
    for state.epoch in range(state.epoch, args.epochs):
        for number, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            state.sampler.record_batch(number, args.batch_size)
            state.batch += 1
            time.sleep(args.pause)
            if number % args.batches_per_commit == 0:
                state.commit()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch} ends with loss {loss.item():.3f} on {hvd.size()}", flush=True)
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)
        state.commit()


state = hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0, sampler=sampler)
state.register_reset_callbacks([scale_learning_rate])
train(state)
if hvd.rank() == 0:
    accuracy = (model(dataset.tensors[0]).argmax(1) == dataset.tensors[1]).float().mean()
    print(f"accuracy {accuracy.item():.3f} in process {os.getpid()}", flush=True)
hvd.shutdown()
