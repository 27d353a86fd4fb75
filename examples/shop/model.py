"""A small network that forecasts the units of a product on a day."""

import torch
from torch import Tensor, nn

from sales import PRODUCTS


class Forecaster(nn.Module):
    """``forward`` takes numbers (B, 4) and products (B), and returns the logarithms of expected units (B)."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.products = nn.Embedding(PRODUCTS, 12)
        self.layers = nn.Sequential(
            nn.Linear(4 + 12, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, numbers: Tensor, products: Tensor) -> Tensor:
        logarithms: Tensor = self.layers(torch.cat([numbers, self.products(products)], dim=1)).squeeze(1)
        return logarithms
