"""The place of a process in the data dimension of its worker: which microbatches it computes."""

from typing import Any

import msgspec

from elastane.common.errors import BadInput
from elastane.run.worker.gangs.seat import Seat
from elastane.run.worker.values import describe_value


class DataPlace(msgspec.Struct, frozen=True):
    """One of the places that compute neighbouring virtual ranks at the same time.

    Args:
        number: of the place, from 0; processes with the same number compute the same microbatches.
        size: the number of places; a power of two.
        part: the number of the part of each microbatch that this process computes.
        parts: their number; FSDP adds the gradients of all. 1: each process computes whole microbatches.
    """

    number: int
    size: int
    part: int = 0
    parts: int = 1


LONE_PLACE = DataPlace(0, 1)
"""The place of the only process of a worker."""


def find_data_place(data: Any, seat: Seat) -> DataPlace:
    """Return the place of this process.

    Args:
        data: the data dimension of the script's mesh, or that and the dimension along which processes
            compute parts of a microbatch; None: each process computes microbatches of its own.

    Raises:
        BadInput: it is not one or two dimensions of a mesh over the processes of this worker.
    """
    if data is None:
        return DataPlace(seat.number, seat.processes)
    if not all(hasattr(data, name) for name in ("ndim", "size", "get_local_rank")) or data.ndim not in (1, 2):
        raise BadInput(
            f"run.steps was given {describe_value(data)} as its data dimension",
            means="processes compute different microbatches along one dimension of a DeviceMesh, and parts "
            "of them along a second one, if FSDP adds over both",
            do='pass it: mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), then '
            'data=mesh["dp"]; or data=mesh for ("dp", "cp")',
        )
    place = DataPlace(
        *(value for dim in range(data.ndim) for value in (data.get_local_rank(dim), data.size(dim)))
    )
    if seat.processes % (together := place.size * place.parts):
        raise BadInput(
            f"the data dimension has {together} processes, and the worker {seat.processes}",
            means="each of its places has equally many processes",
            do="divide the processes of one worker: its world is that of torch.distributed",
        )
    return place
