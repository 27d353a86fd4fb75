"""The whole tensors of a divided model, from the memory of all processes of a gang."""

from collections.abc import Sequence

import torch

from elastane.run.worker.gangs.gang_messages import Plane
from elastane.run.worker.state.model_layout import Extent
from elastane.run.worker.state.shared_memory import PeerArenas, Section
from elastane.run.worker.state.training_state import TrainingState


class GatheredShards:
    """Reads the values that the processes of this gang have, after their scripts have ended.

    Args:
        state: of this process.
        planes: the memory of each process, in their order.
    """

    def __init__(self, state: TrainingState, planes: Sequence[Plane]) -> None:
        layout = state.layout
        self._layout, self._shards = layout, state.get_shards()
        self._gathered: dict[int, torch.Tensor] = {}
        self._parts: dict[int, tuple[Extent, list[tuple[torch.Tensor, ...]]]] = {}
        """The extent of each divided tensor of the model, and the memory of each process, by its id."""
        values = [(plane.pid, plane.values) for plane in planes]
        self._add(layout.sources, layout.extents, layout.sections, values)
        if layout.frozen_extents:
            frozen = [(plane.pid, plane.frozen) for plane in planes]
            self._add(layout.divided_frozen, layout.frozen_extents, layout.frozen_sections, frozen)

    def _add(
        self,
        tensors: Sequence[torch.Tensor],
        extents: Sequence[Extent],
        sections: Sequence[Section],
        memory: Sequence[tuple[int, int]],
    ) -> None:
        arenas = PeerArenas(sections)
        mapped = [arenas.map_sections(pid, descriptor) for pid, descriptor in memory]
        for tensor, extent in zip(tensors, extents, strict=True):
            self._parts[id(tensor)] = extent, mapped

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the whole of a divided tensor of the model; any other tensor itself."""
        if id(tensor) not in self._parts:
            return tensor
        # Tied tensors are one tensor, also in the file.
        if id(tensor) not in self._gathered:
            self._gathered[id(tensor)] = self._join(tensor)
        return self._gathered[id(tensor)]

    def _join(self, tensor: torch.Tensor) -> torch.Tensor:
        extent, memory = self._parts[id(tensor)]
        whole = torch.empty(extent.whole.shape, dtype=tensor.dtype)
        for box, sections in zip(self._shards.find_boxes(tensor), memory, strict=True):
            flat = sections[extent.section][extent.start : extent.start + box.elements]
            # Copies are equal, so it does not matter which one is the last.
            whole[box.slice((0,) * whole.dim())] = flat.view(box.sizes)
        return whole
