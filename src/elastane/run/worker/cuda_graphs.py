"""CUDA graphs in a script: which are exact, and the refusal of the others.

The gradients of a replayed graph are always in the same memory, which the next replay overwrites. On a device
they are added to a slot after each backward pass, before another replay (`DeviceSlots`), so graphs of
``torch.cuda.make_graphed_callables`` and of ``torch.compile(mode="reduce-overhead")`` are exact. Refused are
graphs that would compute with the parameters' memory from before `run.prepare`, and graphs that contain
``step.backward``: a replay calls neither the run nor its hooks.
"""

import torch
from torch import nn

from elastane.common.errors import BadInput

GRAPHS = "torch.cuda.graphs"
"""The module of torch with the function that replaces ``forward`` of a module by a replay."""


def check_no_graphs(model: nn.Module) -> None:
    """Refuse a model with a part that is a captured graph before `run.prepare` moves its parameters.

    Raises:
        BadInput: a module was given to ``torch.cuda.make_graphed_callables``.
    """
    for path, module in model.named_modules():
        forward = vars(module).get("forward")
        if getattr(forward, "__module__", "") == GRAPHS:
            raise BadInput(
                f"{path or 'the model'} was captured in a CUDA graph before run.prepare",
                means="run.prepare moves the parameters, and the graph goes on to read their old memory",
                do="call torch.cuda.make_graphed_callables after run.prepare",
            )


def check_not_capturing(loss: torch.Tensor) -> None:
    """Refuse a backward pass that becomes part of a graph.

    Raises:
        BadInput: the present stream of the loss's device is captured.
    """
    if loss.is_cuda and torch.cuda.is_current_stream_capturing():
        raise BadInput(
            "step.backward was called while a CUDA graph is captured",
            means="a replay of the graph would compute gradients that the run does not see",
            do="capture the model alone, after run.prepare, with torch.cuda.make_graphed_callables or "
            "torch.compile(mode='reduce-overhead'), and call step.backward outside of the capture",
        )
