"""A trainer in the manner of PyTorch's ImageNet example: arguments, sampler, loader processes, best model."""

import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from journal import Journal
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Pictures(Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 8, 8, generator=generator), index % 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    journal = Journal(args.folder)
    dist.init_process_group("gloo", init_method="env://")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)
    start_epoch, best = 0, 0.0
    newest = args.folder / "checkpoint.pth.tar"
    if newest.is_file():
        checkpoint = torch.load(newest)
        start_epoch, best = checkpoint["epoch"], checkpoint["best"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    parallel = nn.parallel.DistributedDataParallel(model)
    data = Pictures()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size // size, sampler=sampler, num_workers=args.workers)
    journal.note(f"start {rank}/{size} from {start_epoch}, local {os.environ['LOCAL_RANK']}")
    for epoch in range(start_epoch, args.epochs):
        sampler.set_epoch(epoch)
        right = torch.zeros(2)
        for images, target in loader:
            output = parallel(images)
            loss = nn.functional.cross_entropy(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += torch.tensor([(output.argmax(1) == target).sum(), len(target)])
        dist.all_reduce(right)
        scheduler.step()
        journal.wait_at(epoch)
        accuracy = (right[0] / right[1]).item()
        if rank == 0:
            save(args.folder, epoch + 1, model, optimizer, scheduler, max(best, accuracy), accuracy > best)
            journal.note(f"epoch {epoch} of {size}: {int(right[1])} samples")
        best = max(best, accuracy)
    # torch 2.13 may hang forever if DDP outlives its group: the group's destructor waits for a thread that
    # waits for the interpreter's lock.
    del parallel
    dist.destroy_process_group()


def save(folder, epoch, model, optimizer, scheduler, best, is_best):
    state = {
        "epoch": epoch,
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "best": best,
    }
    torch.save(state, folder / "checkpoint.new")
    (folder / "checkpoint.new").replace(folder / "checkpoint.pth.tar")
    if is_best:
        shutil.copyfile(folder / "checkpoint.pth.tar", folder / "model_best.pth.tar")


if __name__ == "__main__":
    main()
