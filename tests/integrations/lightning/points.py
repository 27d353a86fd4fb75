"""Data for the modules of Lightning, without Lightning."""

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


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


def make_loader(**options):
    return DataLoader(Points(), **({"batch_size": 8, "shuffle": True} | options))
