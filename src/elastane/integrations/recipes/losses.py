"""The losses of tasks, as a sum and its weight: ``step.backward(loss_sum, weight=weight)``.

The step divides the sum over all microbatches by the sum of their weights. So the loss of a step is the mean
over all its tokens (or pairs), at any number of workers, although microbatches have different numbers of
them. Batches are those of `elastane.integrations.recipes.data.open_data`.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from elastane.integrations.recipes.data.sample_file import IGNORED

Batch = Mapping[str, torch.Tensor]


def causal_loss_sum(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
    """Return the sum of the cross entropy over all targets of a batch, and the number of targets.

    In training mode a mixture of experts adds its router's loss, as `transformers` computes and weighs it for
    the microbatch, times the number of targets: ``cross entropies + targets * coefficient * router loss``. So
    a single microbatch has the loss of `transformers`, and a step has the mean of the router losses of its
    microbatches, each weighed by its targets. The router's loss is a function of the microbatch alone; the
    number of workers does not change it. In evaluation mode it is left out: perplexity is
    ``exp(sum / targets)``.

    Args:
        model: a causal language model of `transformers`, perhaps inside an adapter of `peft`.
        batch: has ``input_ids``, ``targets`` and perhaps ``attention_mask``; best on the host, where the
            targets can be counted without waiting for a GPU.
    """
    weight = int((batch["targets"] != IGNORED).sum())
    batch = move_batch(batch, model)
    coefficient = find_router_coefficient(model) if model.training else 0.0
    outputs = _compute_outputs(model, batch, output_router_logits=True) if coefficient else None
    outputs = outputs or _compute_outputs(model, batch)
    loss_sum = _cross_entropy(outputs.logits, batch["targets"], "sum")
    if coefficient:
        loss_sum = loss_sum + weight * coefficient * outputs.aux_loss.to(loss_sum.device)
    return loss_sum, weight


def move_batch(batch: Batch, model: nn.Module) -> Batch:
    """Return a batch on the device of the model; the copy to a GPU does not wait for its kernels."""
    device = next(model.parameters()).device
    if device.type == "cpu":
        return batch
    return {
        name: (tensor if tensor.is_cuda else tensor.pin_memory()).to(device, non_blocking=True)
        for name, tensor in batch.items()
    }


def find_router_coefficient(model: nn.Module) -> float:
    """Return the weight of the router's loss in a mixture of experts; 0: a model without a router's loss."""
    config = getattr(model, "config", None)
    coefficient = getattr(config, "router_aux_loss_coef", None)
    return float(coefficient or 0.0)


def sequence_log_probs(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the log-probability of the targets of each sequence, of shape (sequences,), in fp32."""
    targets = batch["targets"]
    losses = _cross_entropy(_compute_outputs(model, batch).logits, targets, "none")
    # The cross entropy of ignored targets is 0.
    return -losses.view(targets.shape).sum(dim=1)


def preference_loss_sum(
    model: nn.Module, reference_log_probs: torch.Tensor, batch: Batch, beta: float
) -> tuple[torch.Tensor, int]:
    """Return the sum of the losses of the pairs of a batch, and their number, for preference optimization.

    The loss of a pair is ``-log sigmoid(margin)``; see `preference_margins`.

    Args:
        model: that is trained.
        reference_log_probs: `sequence_log_probs` of the model before the training, for the same batch.
        batch: of preference pairs: all chosen sequences, then all rejected ones.
        beta: how closely the model stays to the reference; 0.1 is usual.
    """
    margins = preference_margins(sequence_log_probs(model, batch), reference_log_probs, beta)
    return -functional.logsigmoid(margins).sum(), len(margins)


def preference_margins(
    log_probs: torch.Tensor, reference_log_probs: torch.Tensor, beta: float
) -> torch.Tensor:
    """Return the margin of each pair: the argument of the sigmoid in equation 7 of Rafailov et al. (2023).

    It is ``beta * ((chosen - reference of chosen) - (rejected - reference of rejected))``, all of them
    log-probabilities. A positive margin says that the model prefers the chosen sequence more than the
    reference does. So the accuracy is the share of positive margins.

    Args:
        log_probs: of all chosen sequences, then of all rejected ones.
        beta: see `preference_loss_sum`.
    """
    rewards = beta * (log_probs - reference_log_probs.to(log_probs.device))
    chosen, rejected = rewards.chunk(2)
    return chosen - rejected


def _compute_outputs(model: nn.Module, batch: Batch, **options: Any) -> Any:
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
    return model(**inputs, use_cache=False, **options)


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor, reduction: str) -> torch.Tensor:
    """Return the cross entropy in fp32, as `transformers` computes it."""
    return functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction=reduction
    )


class ReferenceModel:
    """The model before the training: the model itself without its adapter, or else a frozen copy."""

    def __init__(self, model: nn.Module) -> None:
        self._copy = None if hasattr(model, "disable_adapter") else _freeze_copy(model)

    @torch.no_grad()
    def compute_log_probs(self, model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the log-probabilities of preference pairs under the reference, without dropout."""
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
