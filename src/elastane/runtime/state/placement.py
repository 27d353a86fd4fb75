"""Where the model's tensors are while it trains, and how they meet the memory that peers read.

Sums, votes, digests and everything between workers are matters of the host: arenas that peers on this
machine read. On the CPU the model trains in that very memory (`InPlace`). On a GPU it trains there, and the
arena is the place of exchange (`Mirrored`): gradients come down as they are computed, whole sums go up before
the optimizer runs, values go up when a peer has computed them and come down when somebody wants to read them.

The protocol says who may read or write what when, by events that the two threads of a worker post. That
argument holds on a device too because every call here that takes part in it has done its copies when it
returns; streams only keep those copies from waiting behind kernels that have nothing to do with them.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import torch

from elastane.runtime.state.memory import Arena
from elastane.runtime.state.model_layout import ModelLayout

Sections: TypeAlias = tuple[torch.Tensor, ...]
View: TypeAlias = Callable[[Sections], torch.Tensor]
Deliver: TypeAlias = Callable[[torch.Tensor], None]


class InPlace:
    """Parameters are views of the arena; nothing is ever copied.

    Attributes:
        arena: what peers read: all parameters and, as committed, all buffers.
        values: sections that model and optimizer work on.
        carrier: None; gradients are on the host as they come.
    """

    def __init__(self, layout: ModelLayout) -> None:
        self.arena = Arena("values", layout.sections)
        self.values: Sections = self.arena.tensors
        self.carrier: Carrier | None = None

    def gradients(self, sums: Sections, blocks: Iterable[int]) -> Sections:  # noqa: ARG002 - all are there
        """The whole sums where the optimizer can read them."""
        return sums

    def spare(self, sums: Sections) -> Sections:
        """What `gradients` would return, all zeros as ``sums`` are."""
        return sums

    def on_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors of the model's device as tensors on the host."""
        return list(tensors)

    def computed(self, blocks: Iterable[int]) -> None:
        """The optimizer has given these blocks new values."""

    def show(self, blocks: Iterable[int]) -> None:
        """Have the arena hold the values of these blocks, for peers, digests and copies to read."""

    def taken(self, view: View) -> None:
        """The arena has new values where ``view`` shows them: have the model use those."""

    def complete(self) -> None:
        """Wait until what this thread has asked the device to do is done."""

    def aside(self) -> AbstractContextManager[object]:
        """Around what the reactor thread does with tensors of the model's device."""
        return nullcontext()


class Mirrored:
    """Parameters and optimizer state are on a device; the arena is brought up to date when somebody reads it.

    Buffers need no mirror: what is committed of them is kept, and computed, on the host alone.

    Args:
        layout: of the model; says on which device. On the CPU the mirror is more memory of the CPU: that
            differs from a GPU in nothing but the copies' being synchronous.
    """

    def __init__(self, layout: ModelLayout) -> None:
        self._layout = layout
        self.arena = Arena("values", layout.sections)
        self.values: Sections = self._on_device(self.arena.tensors)
        self.carrier: Carrier | None = Carrier(layout.device)
        self._sums: Sections | None = None
        # Blocks whose values in the arena are older than those on the device.
        self._stale: set[int] = set()
        self._aside = _open_stream(layout.device)

    def _on_device(self, host: Sections) -> Sections:
        """Memory for the parameters' sections; those of buffers are the host's own."""
        trained = self._layout.parameter_sections
        return (*(torch.zeros_like(s, device=self._layout.device) for s in host[:trained]), *host[trained:])

    def gradients(self, sums: Sections, blocks: Iterable[int]) -> Sections:
        """The whole sums where the optimizer can read them.

        Args:
            sums: sections on the host.
            blocks: those needed.
        """
        there = self.spare(sums)
        for block in self._trained(blocks):
            self._layout.block(there, block).copy_(self._layout.block(sums, block), non_blocking=True)
        return there

    def spare(self, sums: Sections) -> Sections:
        """What `gradients` would return; zeros as long as that was never called."""
        if self._sums is None:
            self._sums = self._on_device(sums)
        return self._sums

    def on_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies on the host, complete on return."""
        copies = [tensor.to("cpu", non_blocking=True, copy=True) for tensor in tensors]
        self.complete()
        return copies

    def computed(self, blocks: Iterable[int]) -> None:
        """The optimizer has given these blocks new values; on return its kernels have ended."""
        self.complete()
        self._stale |= self._trained(blocks)

    def show(self, blocks: Iterable[int]) -> None:
        """Have the arena hold the values of these blocks, for peers, digests and copies to read."""
        for block in self._stale & self._trained(blocks):
            shown = self._layout.block(self.arena.tensors, block)
            shown.copy_(self._layout.block(self.values, block))
            self._stale.discard(block)

    def taken(self, view: View) -> None:
        """The arena has new values where ``view`` shows them: have the model use those."""
        view(self.values).copy_(view(self.arena.tensors))

    def complete(self) -> None:
        """Wait until what this thread has asked the device to do is done."""
        if self._layout.device.type == "cuda":
            torch.cuda.current_stream(self._layout.device).synchronize()

    def aside(self) -> AbstractContextManager[object]:
        """Around what the reactor thread does with tensors of the model's device.

        A stream of its own: a copy that a peer waits for would else wait for a whole backward pass.
        """
        return nullcontext() if self._aside is None else torch.cuda.stream(self._aside)

    def _trained(self, blocks: Iterable[int]) -> set[int]:
        return {block for block in blocks if not self._layout.is_buffers(block)}


Placement: TypeAlias = InPlace | Mirrored


def choose_placement(layout: ModelLayout) -> Placement:
    """In place on the CPU, mirrored elsewhere."""
    return InPlace(layout) if layout.device.type == "cpu" else Mirrored(layout)


class Carrier:
    """Brings gradients to the host while the backward pass goes on.

    A copy is queued on a stream of its own, behind the kernel that computes the gradient, and ends in pinned
    memory, which torch's allocator keeps for the next step. A thread waits for it, so that only a gradient
    that has arrived is added to a slot, and only a block whose gradients have all arrived is announced.

    Args:
        device: of the gradients.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _open_stream(device)
        # One thread: gradients are added in the order in which the backward pass came to them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elastane-gradients")
        self._under_way: list[Future[None]] = []

    def bring(self, gradient: torch.Tensor, deliver: Deliver) -> None:
        """Copy a gradient and hand the copy to ``deliver``, on the carrier's thread."""
        arrived = None
        if self._stream is None:
            host = gradient.to("cpu", copy=True)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                host = gradient.to("cpu", non_blocking=True, copy=True)
            # Blocking: the thread sleeps instead of spinning on a core.
            arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        self._under_way.append(self._thread.submit(_deliver, gradient, host, arrived, deliver))

    def wait(self) -> None:
        """Until every gradient is delivered.

        Raises:
            BaseException: what ``deliver`` raised.
        """
        under_way, self._under_way = self._under_way, []
        for delivery in under_way:
            delivery.result()


def _deliver(
    gradient: torch.Tensor,  # noqa: ARG001 - held: its memory must not be used anew before the copy has ended
    host: torch.Tensor,
    arrived: torch.cuda.Event | None,
    deliver: Deliver,
) -> None:
    if arrived is not None:
        arrived.synchronize()
    # Grad mode belongs to a thread.
    with torch.no_grad():
        deliver(host)


def _open_stream(device: torch.device) -> torch.cuda.Stream | None:
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
