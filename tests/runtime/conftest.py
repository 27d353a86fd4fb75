"""Fixtures: every test trains alone, on one thread, and leaves no settings behind."""

import gc

import pytest
import torch

from elastane.runtime import worker_settings


@pytest.fixture(autouse=True, scope="session")
def frozen_heap() -> None:
    """Hide the objects of torch and pytest from `find_live_objects`.

    A run looks through all objects of its process several times. Here these are a million, and
    the search took most of the time of each test.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_settings, "_settings", worker_settings.get_settings())
    torch.set_num_threads(1)
