"""The reference of preference tuning: the model as it was before the training."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from elastane.integrations.recipes.losses import sequence_log_probs


class ReferenceModel:
    """The model before the training: the model itself without its adapter, or else a frozen copy.

    Args:
        model: before the training.
    """

    def __init__(self, model: nn.Module) -> None:
        self._copy = None if hasattr(model, "disable_adapter") else _freeze_copy(model)

    @torch.no_grad()
    def compute_log_probs(self, model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the log-probabilities of a batch under the reference, without dropout.

        Args:
            model: the trained model; only its adapter has changed, if it has one.
            batch: of preference pairs.
        """
        if self._copy is not None:
            return sequence_log_probs(self._copy, batch)
        was_training = model.training
        model.eval()
        with model.disable_adapter():
            log_probs = sequence_log_probs(model, batch)
        model.train(was_training)
        return log_probs


def _freeze_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).requires_grad_(requires_grad=False).eval()
