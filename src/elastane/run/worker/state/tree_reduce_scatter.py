"""FSDP's reduce-scatter in the order of the fixed tree over virtual ranks.

Each process of a worker computes another virtual rank, and these are neighbours. So their sum is a node of
the tree, and its bits do not depend on the number of processes that compute it together.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter


class TreeReduceScatter(ReduceScatter):
    """An all-to-all, then additions of neighbours: as many bytes as in a ring.

    The size of the process group is a power of two.
    """

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return memory for the gradients, or for their sum."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> None:
        """Add this process's part of the gradients of all processes."""
        assert not async_op, "FSDP waits for the sum"
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        parts: Sequence[torch.Tensor] = received.view(group.size(), -1).unbind()
        while len(pairs := list(zip(parts[::2], parts[1::2], strict=True))) > 1:
            parts = [left.add_(right) for left, right in pairs]
        torch.add(*pairs[0], out=output_tensor)
