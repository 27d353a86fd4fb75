"""The placement of the model's tensors: in the memory that peers read, or on a device with a mirror there.

Sums, votes, digests and all exchange between workers use host memory: arenas that peers on this machine read.
On the CPU the model trains in the arena itself (`InPlace`). On a GPU it trains in device memory and the
arena is a mirror (`Mirrored`). Gradients are copied to the host as they are computed, and complete sums to
the device before the optimizer runs. Values are copied to the device when a peer has computed them, and to
the host before a peer reads them.

The protocol orders reads and writes by events that the two threads of a worker post. That order holds on a
device too, because every call here that takes part in it returns only when its copies are complete. Streams
only keep these copies from waiting behind unrelated kernels.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import torch

from elastane.runtime.state.devices import open_cuda_stream
from elastane.runtime.state.gradient_copier import GradientCopier
from elastane.runtime.state.model_layout import ModelLayout
from elastane.runtime.state.shared_memory import Arena

Sections: TypeAlias = tuple[torch.Tensor, ...]
View: TypeAlias = Callable[[Sections], torch.Tensor]


class InPlace:
    """The placement on the CPU: parameters are views of the arena, and nothing is copied.

    Attributes:
        arena: the memory that peers read: all parameters, and the committed values of all buffers.
        values: the sections on which the model and the optimizer work.
        copier: None, because gradients are on the host already.
    """

    def __init__(self, layout: ModelLayout) -> None:
        self.arena = Arena("values", layout.sections)
        self.values: Sections = self.arena.tensors
        self.copier: GradientCopier | None = None

    def place_sums(self, sums: Sections, blocks: Iterable[int]) -> Sections:  # noqa: ARG002 - all are there
        """Return the complete sums in memory that the optimizer can read."""
        return sums

    def allocate_sums(self, sums: Sections) -> Sections:
        """Return the memory that `place_sums` would return; it is all zeros if ``sums`` are."""
        return sums

    def copy_to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors of the model's device as tensors on the host; here they are the same tensors."""
        return list(tensors)

    def mark_computed(self, blocks: Iterable[int]) -> None:
        """Note that the optimizer has computed new values of these blocks."""

    def update_arena(self, blocks: Iterable[int]) -> None:
        """Copy the values of these blocks to the arena, from which peers, digests and snapshots read them."""

    def update_model(self, view: View) -> None:
        """Copy new values from the arena to the model; ``view`` selects the values."""

    def synchronize(self) -> None:
        """Wait until the device has completed the work that this thread has queued."""

    def use_side_stream(self) -> AbstractContextManager[object]:
        """Return the context in which the reactor thread uses tensors of the model's device."""
        return nullcontext()


class Mirrored:
    """The placement on a device, with the parameters and optimizer state; the arena is updated before reads.

    Buffers have no mirror: committed buffers are computed and stored on the host only.

    Args:
        layout: the layout of the model, with its device. On the CPU the mirror is other memory of the CPU,
            which differs from a GPU only in that copies are synchronous.
    """

    def __init__(self, layout: ModelLayout) -> None:
        self._layout = layout
        self.arena = Arena("values", layout.sections)
        self.values: Sections = self._allocate_on_device(self.arena.tensors)
        self.copier: GradientCopier | None = GradientCopier(layout.device)
        self._sums: Sections | None = None
        # Blocks that have older values in the arena than on the device.
        self._stale: set[int] = set()
        self._side_stream = open_cuda_stream(layout.device)

    def _allocate_on_device(self, host: Sections) -> Sections:
        """Allocate the sections of parameters on the device; sections of buffers stay on the host."""
        trained = self._layout.parameter_sections
        return (*(torch.zeros_like(s, device=self._layout.device) for s in host[:trained]), *host[trained:])

    def place_sums(self, sums: Sections, blocks: Iterable[int]) -> Sections:
        """Return the complete sums in memory that the optimizer can read.

        Args:
            sums: sections on the host.
            blocks: the blocks that the optimizer needs.
        """
        on_device = self.allocate_sums(sums)
        for block in self._select_trained(blocks):
            self._layout.view_block(on_device, block).copy_(
                self._layout.view_block(sums, block), non_blocking=True
            )
        return on_device

    def allocate_sums(self, sums: Sections) -> Sections:
        """Return the memory that `place_sums` would return; it is zeros until that is called."""
        if self._sums is None:
            self._sums = self._allocate_on_device(sums)
        return self._sums

    def copy_to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies on the host; the copies are complete on return."""
        copies = [tensor.to("cpu", non_blocking=True, copy=True) for tensor in tensors]
        self.synchronize()
        return copies

    def mark_computed(self, blocks: Iterable[int]) -> None:
        """Wait for the optimizer's kernels, and note that these blocks have new values."""
        self.synchronize()
        self._stale |= self._select_trained(blocks)

    def update_arena(self, blocks: Iterable[int]) -> None:
        """Copy the values of these blocks to the arena, from which peers, digests and snapshots read them."""
        for block in self._stale & self._select_trained(blocks):
            values = self._layout.view_block(self.arena.tensors, block)
            values.copy_(self._layout.view_block(self.values, block))
            self._stale.discard(block)

    def update_model(self, view: View) -> None:
        """Copy new values from the arena to the model; ``view`` selects the values."""
        view(self.values).copy_(view(self.arena.tensors))

    def synchronize(self) -> None:
        """Wait until the device has completed the work that this thread has queued."""
        if self._layout.device.type == "cuda":
            torch.cuda.current_stream(self._layout.device).synchronize()

    def use_side_stream(self) -> AbstractContextManager[object]:
        """Return the context in which the reactor thread uses tensors of the model's device.

        The context has its own stream; on another one, a peer's copy would wait for a whole backward pass.
        """
        return nullcontext() if self._side_stream is None else torch.cuda.stream(self._side_stream)

    def _select_trained(self, blocks: Iterable[int]) -> set[int]:
        return {block for block in blocks if not self._layout.is_buffers(block)}


Placement: TypeAlias = InPlace | Mirrored


def choose_placement(layout: ModelLayout) -> Placement:
    """Choose `InPlace` on the CPU, `Mirrored` elsewhere."""
    return InPlace(layout) if layout.device.type == "cpu" else Mirrored(layout)
