"""Synthetic card payments of a bank, always the same ones; real ones may not be published."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

KINDS = 20
"""The kinds of merchants."""
HELD_OUT = 10_000
NIGHT, HASTE, LARGE, ABROAD = 0.25, 0.1, 1.5, 0.1
"""The end of the night in days, a short pause in hours, a large amount, and the share of payments abroad."""


@dataclass(frozen=True)
class Payments:
    """Numbers (amount, hour, pause, abroad), the kind of the merchant, and 1.0 for a fraud."""

    train: TensorDataset
    held_out: TensorDataset


def payments(count: int = 60_000) -> Payments:
    """Return payments of which about 2 % are frauds; their signs are combinations, no single number."""
    generator = torch.Generator().manual_seed(1797)
    amount = torch.randn(count, generator=generator)  # logarithm, against the usual one of the customer
    hour = torch.rand(count, generator=generator)
    pause = -torch.rand(count, generator=generator).log()  # since the payment before
    abroad = (torch.rand(count, generator=generator) < ABROAD).float()
    kind = torch.randint(KINDS, (count,), generator=generator)
    at_night, in_haste, is_large = hour < NIGHT, pause < HASTE, amount > LARGE
    risky = torch.randn(KINDS, generator=generator)[kind]
    sign = (
        6.0 * (at_night & (abroad > 0))
        + 9.0 * (in_haste & is_large)
        + 5.0 * (is_large & (abroad > 0))
        + 1.5 * risky * at_night
    )
    fraud = torch.rand(count, generator=generator) < torch.sigmoid(sign - 7.0)
    numbers = torch.stack([amount, hour, pause, abroad], dim=1)
    parts = [
        (numbers[cut], kind[cut], fraud[cut].float()) for cut in (slice(HELD_OUT), slice(HELD_OUT, None))
    ]
    return Payments(held_out=TensorDataset(*parts[0]), train=TensorDataset(*parts[1]))


def baseline(dataset: TensorDataset) -> float:
    """Return the share of frauds: the precision of guesses."""
    fraud: Tensor = dataset.tensors[2]
    return float(fraud.mean())
