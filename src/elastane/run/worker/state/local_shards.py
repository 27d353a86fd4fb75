"""The local shards of a model that FSDP2 (``fully_shard``) has divided among the processes of a worker.

FSDP keeps its shards where it has put them: it pads and replaces their memory itself. So the run trains
copies in its own memory, which peers read: the script's changes go there before each round, and new values go
from there to FSDP's shards before the next microbatch.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from elastane.common.errors import BadInput
from elastane.run.worker.state.divided_tensors import get_local
from elastane.run.worker.state.model_layout import WholeTensor
from elastane.run.worker.state.tree_reduce_scatter import TreeReduceScatter


class LocalShards:
    """The trained parameters of a model in a worker of several processes.

    Args:
        model: divided by ``fully_shard`` among all processes of the worker.
        optimizer: trains all of its parameters; from now on it trains their local shards.
        processes: the number of processes of the worker.

    Raises:
        BadInput: the model is divided in another way, or a part of it is not divided.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, processes: int) -> None:
        self._processes = processes
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        _check_parameters(model, optimizer, processes)
        self._number = dist.get_rank()
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._sources: dict[int, DTensor] = {}
        """The model's own parameter of each local shard, by the shard's id."""
        self._locals: list[nn.Parameter] = []
        for group in optimizer.param_groups:
            group["params"] = [self._replace(parameter) for parameter in group["params"]]
        for module in self._modules:
            # The run itself divides by the number of samples.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(enable=True)
            module.set_custom_reduce_scatter(TreeReduceScatter())
            # FSDP moves shards of unequal size into padded memory when it first uses them: let it do so now.
            module.unshard()
            module.reshard()

    def _replace(self, source: DTensor) -> nn.Parameter:
        local = nn.Parameter(get_local(source.detach()))
        self._locals.append(local)
        self._sources[id(local)] = source
        return local

    @property
    def names(self) -> dict[nn.Parameter, str]:
        """The names that the local shards have in the model."""
        return {local: self._names[id(self._sources[id(local)])] for local in self._locals}

    def find_source(self, local: nn.Parameter) -> DTensor:
        """Return the model's own parameter of a local shard."""
        return self._sources[id(local)]

    def count_reserved(self, local: nn.Parameter) -> int:
        """Return the elements to reserve for a shard: those of the largest one, which process 0 has."""
        return self.find_shape(local, 0).numel()

    def find_shape(self, local: nn.Parameter, process: int) -> torch.Size:
        """Return the shape of a shard in a process of the worker."""
        return find_shard_shape(self.find_source(local), process, self._processes)

    def find_whole(self, local: nn.Parameter) -> WholeTensor:
        """Return the parameter of which a shard has some rows, and so consecutive elements."""
        source = self.find_source(local)
        before = sum(self.find_shape(local, process).numel() for process in range(self._number))
        shape = tuple(source.shape)
        return WholeTensor(shape, tuple(torch.empty(shape, device="meta").stride()), before)

    @torch.no_grad()
    def read(self) -> None:
        """Copy the values of FSDP's shards, which the script may have changed, to those of the run."""
        for module in self._modules:
            module.reshard()
        torch._foreach_copy_([*self._locals], [*self._list_shards()])

    @torch.no_grad()
    def write(self) -> None:
        """Copy the values of the run to FSDP's shards."""
        torch._foreach_copy_([*self._list_shards()], [*self._locals])

    def _list_shards(self) -> Iterator[torch.Tensor]:
        for local in self._locals:
            yield get_local(self._sources[id(local)])


def find_shard_shape(tensor: DTensor, process: int, processes: int) -> torch.Size:
    """Return the shape of the rows of a tensor that a process has, as `torch.chunk` divides them."""
    rows = -(-tensor.shape[0] // processes)
    own = max(0, min(rows, tensor.shape[0] - process * rows))
    return torch.Size((own, *tensor.shape[1:]))


def _check_parameters(model: nn.Module, optimizer: Optimizer, processes: int) -> None:
    sharded = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for parameter in module.parameters()
    }
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        _check_division(name, parameter, processes, is_sharded=id(parameter) in sharded)
        if id(parameter) not in trained or not parameter.requires_grad:
            raise BadInput(
                f"the optimizer does not train {name}",
                means="a worker of several processes cannot carry frozen parameters yet",
                do="train all parameters, or use one process per worker: leave --processes out",
            )
    if unknown := trained - {id(parameter) for parameter in model.parameters()}:
        raise BadInput(
            f"the optimizer has {len(unknown)} parameters that the model does not have",
            means="fully_shard has replaced them, or they belong to another module",
            do="build the optimizer with model.parameters() after fully_shard",
        )
    if optimizer.state:
        raise BadInput(
            "the optimizer has made steps before run.prepare",
            means="a worker of several processes cannot take over the state of divided parameters yet",
            do="pass a new optimizer",
        )


def _check_division(name: str, parameter: nn.Parameter, processes: int, *, is_sharded: bool) -> None:
    if not isinstance(parameter, DTensor) or not is_sharded:
        raise BadInput(
            f"{name} is not divided among the {processes} processes of the worker",
            means="each process computes another microbatch, so its gradient would differ between them; DDP "
            "inside a worker is not exact, because Elastane is the replicate dimension",
            do="call fully_shard(model) before the optimizer is built; without a model that must be divided, "
            "leave --processes out and use more workers",
        )
    mesh = parameter.device_mesh
    if mesh.mesh.tolist() != list(range(processes)) or parameter.placements != (Shard(0),):
        raise BadInput(
            f"{name} is divided over the mesh {mesh.mesh.tolist()}, {parameter.placements}",
            means="so far a worker divides the rows of its parameters by FSDP2, over all of its processes in "
            "their order; HSDP's replicate dimension, tensor and pipeline parallelism have not been tried",
            do="call fully_shard without mesh and shard_placement_fn",
        )
    if mesh.device_type != "cpu":
        raise BadInput(
            f"{name} is on {mesh.device_type}",
            means="so far a worker of several processes trains on the CPU",
            do="use one process per GPU: leave --processes out, and let --workers be the number of GPUs",
        )
