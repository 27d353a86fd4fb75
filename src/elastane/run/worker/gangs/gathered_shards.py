"""The whole tensors of a divided model, from the memory of all processes of a gang."""

from collections.abc import Sequence

import torch

from elastane.run.worker.gangs.gang_messages import Plane
from elastane.run.worker.state.shared_memory import PeerArenas
from elastane.run.worker.state.training_state import TrainingState


class GatheredShards:
    """Reads the values that the processes of this gang have, after their scripts have ended.

    Args:
        state: of this process.
        planes: the memory of each process, in their order.
    """

    def __init__(self, state: TrainingState, planes: Sequence[Plane]) -> None:
        layout = state.layout
        self._numbers = {id(source): number for number, source in enumerate(layout.sources)}
        self._layout, self._shards = layout, state.get_shards()
        self._gathered: dict[int, torch.Tensor] = {}
        arenas = PeerArenas(layout.sections)
        self._values = [arenas.map_sections(plane.pid, plane.values) for plane in planes]

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the whole of a trained tensor of the model; any other tensor itself."""
        if id(tensor) not in self._numbers:
            return tensor
        number = self._numbers[id(tensor)]
        # Tied tensors are one tensor, also in the file.
        if number not in self._gathered:
            self._gathered[number] = self._join(number)
        return self._gathered[number]

    def _join(self, number: int) -> torch.Tensor:
        extent, parameter = self._layout.extents[number], self._layout.parameters[number]
        whole = torch.empty(extent.whole.shape, dtype=parameter.dtype)
        for box, sections in zip(self._shards.find_boxes(parameter), self._values, strict=True):
            flat = sections[extent.section][extent.start : extent.start + box.elements]
            # Copies are equal, so it does not matter which one is the last.
            whole[box.slice((0,) * whole.dim())] = flat.view(box.sizes)
        return whole
