"""Synthetic measurements of three institutes, always the same ones; each institute may read its own only."""

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

FEATURES, CLASSES = 16, 4
PATIENTS = {"berlin": 6000, "boston": 4000, "kyoto": 2000}
"""The institutes, which are the sites of the run, and how many patients each has."""


def measurements(site: str) -> TensorDataset:
    """Return the patients of an institute: what was measured (FEATURES), and the diagnosis.

    Each institute has other patients: most have one of two diagnoses, so none can learn all four by itself.
    """
    place = sorted(PATIENTS).index(site)
    return _draw(PATIENTS[site], seed=100 + place, usual=(place, place + 1))


def public_measurements() -> TensorDataset:
    """Return patients of a public collection, on which every site compares models."""
    return _draw(2000, seed=7, usual=tuple(range(CLASSES)))


def _draw(count: int, *, seed: int, usual: tuple[int, ...]) -> TensorDataset:
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    often = torch.tensor(usual)[torch.randint(len(usual), (count,), generator=generator)]
    any_ = torch.randint(CLASSES, (count,), generator=generator)
    diagnosis = torch.where(torch.rand(count, generator=generator) < 0.95, often, any_)  # noqa: PLR2004
    noise: Tensor = torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(centres[diagnosis] + 1.5 * noise, diagnosis)
