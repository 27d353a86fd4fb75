"""The copying of gradients from a device to the host during the backward pass."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import torch

from elastane.run.worker.state.devices import open_cuda_stream

GradientsByNumber: TypeAlias = Mapping[int, torch.Tensor]
"""Gradients of parameters, by the parameters' numbers."""
Add: TypeAlias = Callable[[GradientsByNumber], None]
"""Adds gradients to a slot."""


class GradientCopier:
    """Copies gradients to the host during the backward pass.

    Each copy is queued on a separate stream, behind the kernel that computes the gradient. It goes to pinned
    memory, which torch's allocator reuses in the next step. A thread waits for each copy. So a gradient is
    added to a slot only after it has arrived, and a block is announced only after all its gradients have.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = open_cuda_stream(device)
        # One thread, so that gradients are added in the order in which the backward pass computes them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elastane-gradients")
        self._deliveries: list[Future[None]] = []

    def copy(self, gradients: GradientsByNumber, add: Add) -> None:
        """Copy gradients and hand the copies to ``add``, on the copier's thread."""
        arrived = None
        if self._stream is None:
            copies = _copy_to_host(gradients)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                copies = _copy_to_host(gradients)
            # Blocking: the thread sleeps instead of spinning.
            arrived = torch.cuda.Event(blocking=True)
            arrived.record(self._stream)
        self._deliveries.append(self._thread.submit(_deliver, gradients, copies, arrived, add))

    def wait(self) -> None:
        """Wait until every gradient is delivered.

        Raises:
            BaseException: ``add`` raised it.
        """
        deliveries, self._deliveries = self._deliveries, []
        for delivery in deliveries:
            delivery.result()


def _copy_to_host(gradients: GradientsByNumber) -> GradientsByNumber:
    """Copy gradients; on a GPU the copies may arrive later."""
    return {
        number: gradient.to("cpu", non_blocking=gradient.is_cuda, copy=True)
        for number, gradient in gradients.items()
    }


def _deliver(
    gradients: GradientsByNumber,  # noqa: ARG001 - their memory must not be reused before the copy has ended
    copies: GradientsByNumber,
    arrived: torch.cuda.Event | None,
    add: Add,
) -> None:
    if arrived is not None:
        arrived.synchronize()
    # Grad mode is a setting of the thread.
    with torch.no_grad():
        add(copies)
