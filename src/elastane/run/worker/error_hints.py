"""Hints for errors of a script that come from code which a run replaces, such as DDP, or from its calls."""

import re

from elastane.common.errors import BadInput

_HINTS: tuple[tuple[str, str, str], ...] = (
    (
        r"process group has not been initialized|rendezvous|init_process_group",
        "a worker has no process group of torch.distributed: Elastane itself divides each step among workers",
        "remove init_process_group, DDP and all_reduce: step.backward and run.evaluate sum over all workers",
    ),
    (
        r"No inf checks were recorded|unscale_\(\) (has already|is being)",
        "the run itself scales the loss, unscales the gradient and updates the scale",
        "pass run.prepare(..., scaler=scaler) and write step.backward(loss), without calls of the scaler",
    ),
    (
        r"element 0 of tensors does not require grad|backward through the graph a second time",
        "each microbatch has one backward pass, that of step.backward(loss)",
        "remove loss.backward(), and compute the loss from the outputs of the prepared model",
    ),
    (
        r"Expected more than 1 value per channel when training",
        "batch normalization cannot train on a microbatch of one sample, which the end of an epoch may leave",
        "pass drop_last=True to run.steps, to leave out what fills no step, and a microbatch of 2 or more",
    ),
    (
        r"Run\.(prepare|steps|evaluate)\(\) (takes|missing|got)",
        "these calls take the model and the optimizer, or the dataset, by position and all else by name",
        "write prepare(model, optimizer, scheduler=scheduler) and steps(dataset, global_batch=64, ...)",
    ),
    (
        r"CUDA out of memory",
        "a worker holds the model, its optimizer state and the activations of one microbatch",
        "pass a smaller microbatch= to run.steps, which keeps the global batch, or use --copies 1",
    ),
)


def find_hint(error: BaseException) -> str:
    """Return lines to print after the traceback of an error; empty: the error has no hint."""
    for pattern, means, do in _HINTS:
        if re.search(pattern, str(error)):
            return "\n".join(str(BadInput("", means=means, do=do)).splitlines()[1:]) + "\n"
    return ""
