"""Every test trains alone, on one thread, and leaves no settings behind."""

import pytest
import torch

from elastane.runtime import settings


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_settings", settings.current())
    torch.set_num_threads(1)
