"""What to write instead, for errors of PyTorch's that tell of ways to train that a run replaces."""

import re

from elastane.api.errors import BadInput

_HINTS: tuple[tuple[str, str, str], ...] = (
    (
        r"process group has not been initialized|rendezvous|init_process_group",
        "torch.distributed is not set up in a worker: Elastane's workers share each step themselves",
        "leave out init_process_group, DDP and all_reduce; step.backward and run.evaluate sum over workers",
    ),
    (
        r"No inf checks were recorded|unscale_\(\) (has already|is being)",
        "the run scales the loss, takes the scale out of the sum of gradients, and moves it",
        "pass run.prepare(..., scaler=scaler) and write step.backward(loss) alone",
    ),
    (
        r"element 0 of tensors does not require grad|backward through the graph a second time",
        "a run has one backward pass for each microbatch, that of step.backward(loss)",
        "leave loss.backward() out, and compute the loss from the outputs of the prepared model",
    ),
    (
        r"CUDA out of memory",
        "a worker holds the model, its optimizer state and the activations of one microbatch",
        "use a smaller microbatch= in run.steps, which trains the same global batch, or --copies 1",
    ),
)


def find_hint(error: BaseException) -> str:
    """Return lines to print after the traceback of an error; empty if it tells of nothing of a run."""
    for pattern, means, do in _HINTS:
        if re.search(pattern, str(error)):
            return "\n".join(str(BadInput("", means=means, do=do)).splitlines()[1:]) + "\n"
    return ""
