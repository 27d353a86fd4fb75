"""The 1797 handwritten digits that come with scikit-learn, without a download."""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

HELD_OUT = 360


@dataclass(frozen=True)
class Digits:
    """Images (1, 8, 8) with values 0 to 1 and their labels; always the same fifth is held out."""

    train: TensorDataset
    held_out: TensorDataset


def digits() -> Digits:
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 16
    targets = torch.from_numpy(labels).long()
    # The file is ordered by writer and digit, so the split is random, the same for all runs.
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(1797))
    train, held_out = order[:-HELD_OUT], order[-HELD_OUT:]
    return Digits(
        TensorDataset(images[train], targets[train]), TensorDataset(images[held_out], targets[held_out])
    )
