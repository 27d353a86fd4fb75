"""The optimizer of recipes, AdamW, and its schedule: a linear warm-up, then half a cosine."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from elastane import SplitAdamW
from elastane.integrations.recipes.recipe import TrainingSpec


def build_optimizer(model: nn.Module, spec: TrainingSpec) -> torch.optim.AdamW:
    """Return the optimizer of all trained parameters, in float32 also if they are in bfloat16.

    Only matrices decay.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [tensor for tensor in trained if tensor.dim() > 1], "weight_decay": spec.weight_decay},
        {"params": [tensor for tensor in trained if tensor.dim() <= 1], "weight_decay": 0.0},
    ]
    kept: list[dict[str, Any]] = [group for group in groups if group["params"]]
    is_split = any(tensor.dtype == torch.bfloat16 for tensor in trained)
    kind = SplitAdamW if is_split else torch.optim.AdamW
    return kind(kept, lr=spec.learning_rate, betas=spec.betas)


def build_learning_rate_schedule(
    optimizer: torch.optim.Optimizer, spec: TrainingSpec, steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the schedule of the learning rate; it depends on the step, never on the number of workers."""
    factor = make_warmup_cosine(spec.warmup_steps, steps, spec.final_learning_rate)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def make_warmup_cosine(warmup: int, steps: int, final: float) -> Callable[[int], float]:
    """Return the factor of the learning rate by step: it rises to 1, and is ``final`` at the end."""

    def compute_factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        progress = min(1.0, (step - warmup) / max(1, steps - warmup))
        return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2

    return compute_factor
