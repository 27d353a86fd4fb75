"""The division of the model of `gang.py` by tensor parallelism, and by FSDP2 over the data dimension."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def divide(model: nn.Module, data: int, tensor: int, *, sequence: bool) -> DeviceMesh:
    """Divide the model; return the data dimension of the mesh."""
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("dp", "tp"))
    plan = {"0": ColwiseParallel(), "3": RowwiseParallel()}
    if sequence:
        plan = {
            "0": ColwiseParallel(),
            "3": RowwiseParallel(output_layouts=Shard(0)),
            "4": SequenceParallel(sequence_dim=0),
            "5": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
        }
    parallelize_module(model, mesh["tp"], plan)
    if data > 1:
        fully_shard(model[0], mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    return mesh["dp"]
