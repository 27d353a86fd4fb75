"""Checks of the loss and the weight that a script passes to ``step.backward``."""

import math
from collections.abc import Mapping

import torch

from elastane.common.errors import BadInput
from elastane.run.worker.state.devices import LateNumber
from elastane.run.worker.values import describe_value, to_number


def check_loss(loss: object) -> torch.Tensor:
    """Return the loss as a tensor that a backward pass can begin with.

    Raises:
        BadInput: the loss is not a tensor of one element, or does not depend on the parameters.
    """
    if not isinstance(loss, torch.Tensor):
        raise _build_no_tensor_error(loss)
    if loss.numel() != 1:
        raise BadInput(
            f"step.backward was given a loss of shape {tuple(loss.shape)}",
            means="a backward pass starts from one number, the loss of the microbatch",
            do="reduce it: step.backward(loss.mean()), or step.backward(loss.sum(), weight=number)",
        )
    if not loss.is_floating_point():
        raise BadInput(
            f"step.backward was given a loss of {loss.dtype}",
            means="only floating-point numbers have a gradient",
            do="compute the loss in floating point; for a complex loss pass loss.real or loss.abs()",
        )
    if not loss.requires_grad:
        raise BadInput(
            "step.backward was given a loss without a gradient: it does not require one",
            means="it was detached, computed under torch.no_grad, or does not depend on trained parameters",
            do="compute it from the outputs of the prepared model, without .detach(), .item(), .data, "
            "torch.tensor(...) or torch.no_grad() in between",
        )
    return loss


def check_weight(weight: object) -> float | LateNumber:
    """Return the weight of a microbatch; one that a device still computes is checked when it has arrived.

    Raises:
        BadInput: the weight is not a finite number of at least 0.
    """
    if isinstance(weight, torch.Tensor) and weight.numel() == 1 and not weight.is_complex():
        late = LateNumber(weight)
        if not late.has_arrived:
            return late
    number = None if isinstance(weight, bool) else to_number(weight)
    if number is None or not math.isfinite(number) or number < 0:
        raise BadInput(
            f"step.backward was given an invalid weight: {describe_value(weight)}",
            means="the step divides its gradient by the sum of all weights",
            do="pass a number, 0 or more, such as the number of tokens: weight=mask.sum()",
        )
    return number


def check_summed(samples: int | None, *, is_weighted: bool) -> None:
    """Refuse losses that add up to the step's loss where that loss is not a plain sum.

    Args:
        samples: the samples of a step; None: unknown before all are loaded.
        is_weighted: the microbatch has a weight.

    Raises:
        BadInput: the microbatch has a weight, or the run reads a stream.
    """
    if not is_weighted and samples is not None:
        return
    fault = "weight= and summed=True" if is_weighted else "summed=True in a run over a stream"
    raise BadInput(
        f"step.backward was given {fault}",
        means="with summed=True the script itself has divided the loss, by what it knows of the whole step",
        do="pass the sum and its weight instead: step.backward(loss_sum, weight=number)",
    )


def _build_no_tensor_error(loss: object) -> BadInput:
    if isinstance(loss, float | int):
        do = "pass the tensor itself: step.backward(loss), without loss.item() or float(loss)"
    elif loss is None:
        do = "return the loss from the function that computes it; Hugging Face models need labels=..."
    elif isinstance(loss, Mapping) or hasattr(loss, "loss"):
        do = "pass its loss: step.backward(outputs.loss), or step.backward(outputs['loss'])"
    elif isinstance(loss, list | tuple):
        do = "pass one loss, such as their sum: step.backward(sum(losses)), or the first: losses[0]"
    else:
        do = "pass a tensor of one element: step.backward(loss)"
    is_container = isinstance(loss, Mapping | list | tuple)
    description = f"a {type(loss).__name__}" if is_container else describe_value(loss)
    return BadInput(
        f"step.backward was given {description}, not a tensor",
        means="a backward pass starts from the tensor of the loss",
        do=do,
    )


def build_no_microbatch_error() -> BadInput:
    """Return the error for a backward pass outside the inner loop, or a second one for a microbatch."""
    return BadInput(
        "step.backward was called without a microbatch",
        means="each microbatch has one backward pass",
        do="call it once for each microbatch, inside the loop over the step; add several losses before that",
    )


def build_unused_microbatch_error(where: str = "") -> BadInput:
    """Return the error for a microbatch without a call of ``step.backward``."""
    return BadInput(
        f"{where}a microbatch was taken without step.backward(loss)",
        means="its samples would be lost: the run does not sum the gradients of loss.backward()",
        do="call step.backward(loss) once for each microbatch, instead of loss.backward()",
    )


def explain_second_pass(error: RuntimeError) -> BadInput | None:
    """Return the error for a loss that has had its backward pass; None: the error means something else."""
    if "a second time" not in str(error):
        return None
    return BadInput(
        "step.backward was given a loss that has had its backward pass",
        means="loss.backward() frees the graph that step.backward needs, and the gradient would count twice",
        do="remove loss.backward(): step.backward(loss) runs it",
    )
