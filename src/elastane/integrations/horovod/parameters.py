"""Parameters, optimizer state and objects of one process, sent to all others."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from elastane.common.errors import BadInput
from elastane.integrations.horovod.collectives import broadcast_async_, translate_failures
from elastane.integrations.horovod.world import rank, size


def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int) -> None:
    """Give all processes the values of one, in place.

    Args:
        params: the state dict of a model, or its named parameters: the same names in all processes.
        root_rank: the process that has the values.

    Raises:
        BadInput: ``params`` has other types.
    """
    if isinstance(params, Tensor | str) or not isinstance(params, Mapping | Iterable):
        raise BadInput(
            f"hvd.broadcast_parameters got {type(params).__name__}",
            do="pass model.state_dict() or model.named_parameters()",
        )
    pairs = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    handles = [broadcast_async_(value, root_rank) for _, value in pairs if isinstance(value, Tensor)]
    for handle in handles:
        handle.wait()


def broadcast_optimizer_state(optimizer: Optimizer, root_rank: int) -> None:
    """Give all processes the state and the hyperparameters of the optimizer of one."""
    state = broadcast_object(optimizer.state_dict() if rank() == root_rank else None, root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the object of one process. It travels pickled, between the processes of one run."""
    if size() == 1:
        return obj
    box = [obj]
    with translate_failures():
        dist.broadcast_object_list(box, src=root_rank)
    return obj if rank() == root_rank else box[0]


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all processes, in the order of ranks."""
    boxes: list[Any] = [None] * size()
    if size() == 1:
        return [obj]
    with translate_failures():
        dist.all_gather_object(boxes, obj)
    return boxes
