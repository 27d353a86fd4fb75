"""Synthetic sales of a shop, always the same ones: units of a product on a day."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

PRODUCTS = 60
DAYS, HELD_OUT_DAYS = 3 * 365, 365
WEEKEND = 5
"""The first day of a week's end, counted from 0."""


@dataclass(frozen=True)
class Sales:
    """Numbers (sine and cosine of the day of the year, the week's end, the discount), product, units."""

    train: TensorDataset
    held_out: TensorDataset


def sales() -> Sales:
    """Return the sales of three years for training, and those of the year after them."""
    generator = torch.Generator().manual_seed(365)
    days = torch.arange(DAYS + HELD_OUT_DAYS).repeat_interleave(PRODUCTS)
    product = torch.arange(PRODUCTS).repeat(DAYS + HELD_OUT_DAYS)
    angle = 2 * torch.pi * days / 365
    weekend = (days % 7 >= WEEKEND).float()
    discount = 0.3 * (torch.rand(len(days), generator=generator) < 0.2).float()  # noqa: PLR2004
    usual, season, peak, elastic = (_draw(generator, product) for _ in range(4))
    rate = 1.5 + 0.5 * usual + 0.8 * season * torch.cos(angle - 3 * peak) + 0.4 * weekend
    units = torch.poisson((rate + discount * (1.5 + elastic)).exp(), generator=generator)
    numbers = torch.stack([angle.sin(), angle.cos(), weekend, discount], dim=1)
    cut = DAYS * PRODUCTS
    parts = [(numbers[part], product[part], units[part]) for part in (slice(cut), slice(cut, None))]
    return Sales(train=TensorDataset(*parts[0]), held_out=TensorDataset(*parts[1]))


def find_baseline(shop: Sales) -> float:
    """Return the mean error if each product were sold as often as on a usual day."""
    totals = torch.zeros(PRODUCTS)
    product, units = shop.train.tensors[1:]
    totals.index_add_(0, product, units)
    product, units = shop.held_out.tensors[1:]
    return float((totals[product] / DAYS - units).abs().mean())


def _draw(generator: torch.Generator, product: Tensor) -> Tensor:
    return torch.randn(PRODUCTS, generator=generator)[product]
