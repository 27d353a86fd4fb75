"""Fixtures: every test trains alone, on one thread, and leaves no settings behind."""

import pytest
import torch

from elastane.run.worker import worker_settings


@pytest.fixture(autouse=True)
def alone(frozen_heap: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_settings, "_settings", worker_settings.get_settings())
    torch.set_num_threads(1)
