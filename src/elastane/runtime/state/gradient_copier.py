"""The copying of gradients from a device to the host during the backward pass."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import torch

from elastane.runtime.state.devices import open_cuda_stream

Deliver: TypeAlias = Callable[[torch.Tensor], None]


class GradientCopier:
    """Copies gradients to the host during the backward pass.

    Each copy is queued on a separate stream, behind the kernel that computes the gradient. It goes to pinned
    memory, which torch's allocator reuses in the next step. A thread waits for each copy. So a gradient is
    added to a slot only after it has arrived, and a block is announced only after all its gradients have.

    Args:
        device: the device of the gradients.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = open_cuda_stream(device)
        # One thread, so that gradients are added in the order in which the backward pass computes them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elastane-gradients")
        self._deliveries: list[Future[None]] = []

    def copy(self, gradient: torch.Tensor, deliver: Deliver) -> None:
        """Copy a gradient and hand the copy to ``deliver``, on the copier's thread."""
        arrived = None
        if self._stream is None:
            host = gradient.to("cpu", copy=True)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                host = gradient.to("cpu", non_blocking=True, copy=True)
            # Blocking: the thread sleeps instead of spinning.
            arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        self._deliveries.append(self._thread.submit(_deliver, gradient, host, arrived, deliver))

    def wait(self) -> None:
        """Wait until every gradient is delivered.

        Raises:
            BaseException: ``deliver`` raised it.
        """
        deliveries, self._deliveries = self._deliveries, []
        for delivery in deliveries:
            delivery.result()


def _deliver(
    gradient: torch.Tensor,  # noqa: ARG001 - its memory must not be reused before the copy has ended
    host: torch.Tensor,
    arrived: torch.cuda.Event | None,
    deliver: Deliver,
) -> None:
    if arrived is not None:
        arrived.synchronize()
    # Grad mode is a setting of the thread.
    with torch.no_grad():
        deliver(host)
