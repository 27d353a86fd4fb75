"""The parts of a model that this process has, in a worker of several processes.

FSDP gathers a tensor from flat memory, in which each process has as many elements as the one with the largest
part. The run reserves as many in the memory that peers read, so it is the memory of FSDP, too: the optimizer
trains what FSDP gathers, and nothing is copied. Parts that FSDP does not gather lie there as well. Parts of
frozen parameters lie in other shared memory, from which process 0 writes the whole model at the end.

A part is a rectangle of its tensor. Each process tells the others which ones it has, so the run needs no
knowledge of the mesh: the same rectangle in two processes is a copy, and the first of them counts.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.optim import Optimizer

from elastane.common.errors import BadInput
from elastane.run.checkpoints.rectangles import Box, find_tiling_problem
from elastane.run.worker.gangs.data_place import DataPlace
from elastane.run.worker.state.change_detector import digest_tensor
from elastane.run.worker.state.divided_tensors import get_local, set_local
from elastane.run.worker.state.model_layout import WholeTensor
from elastane.run.worker.state.tree_reduce_scatter import TreeReduceScatter

ALIGNED = 16
"""Elements. Parts begin at cache lines, as in memory of their own: some kernels look at addresses."""


class LocalShards:
    """The parameters of a model in a worker of several processes.

    Args:
        model: divided among the processes of the worker, by FSDP2, by tensor parallelism or by both.
        optimizer: trains all of its parameters that are not frozen; from now on it trains their local parts.
        processes: the number of processes of the worker.

    Raises:
        BadInput: the model is divided in another way.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, processes: int) -> None:
        self._processes = processes
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        _check_parameters(model, optimizer, processes)
        self._number = dist.get_rank()
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        in_groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        trained = [parameter for parameter in in_groups if parameter.requires_grad]
        self._frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        self._boxes: dict[int, tuple[Box, ...]] = {}
        """The box of each process, by the id of the model's own parameter."""
        self._gather_boxes(trained, "train")
        self._gather_boxes(self._frozen, "have")
        self._check_frozen_copies()
        self._sources: dict[int, nn.Parameter] = {}
        """The model's own parameter of each local part, by the part's id."""
        self._locals: list[nn.Parameter] = []
        for group in optimizer.param_groups:
            group["params"] = [self._replace(one) if one.requires_grad else one for one in group["params"]]
        for module in self._modules:
            # The run itself divides by the number of samples.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(enable=True)
            module.set_custom_reduce_scatter(TreeReduceScatter())
            # FSDP looks after the memory of its shards once, when it first uses them: let it do so now.
            module.unshard()
            module.reshard()

    def _gather_boxes(self, parameters: Sequence[nn.Parameter], verb: str) -> None:
        """Learn which part of each parameter every process has; they have them in the same order."""
        own = {
            self._names[id(parameter)]: _find_box(self._names[id(parameter)], parameter)
            for parameter in parameters
        }
        found: list[dict[str, Box]] = [{} for _ in range(self._processes)]
        dist.all_gather_object(found, own)
        _check_names(found, verb)
        gathered = [list(boxes.values()) for boxes in found]
        for parameter, boxes in zip(parameters, zip(*gathered, strict=True), strict=True):
            _check_boxes(self._names[id(parameter)], parameter, boxes)
            self._boxes[id(parameter)] = boxes

    def _check_frozen_copies(self) -> None:
        """Check that processes have equal values of what several of them have; a run never changes these."""
        own = {}
        for parameter in self._frozen:
            boxes = self._boxes[id(parameter)]
            box = boxes[self._number]
            if box.elements and boxes.count(box) > 1:
                own[self._names[id(parameter)], box] = digest_tensor(get_local(parameter.detach()))
        found: list[dict[tuple[str, Box], str]] = [{} for _ in range(self._processes)]
        dist.all_gather_object(found, own)
        first: dict[tuple[str, Box], tuple[int, str]] = {}
        for process, digests in enumerate(found):
            for part, digest in digests.items():
                other, known = first.setdefault(part, (process, digest))
                if known != digest:
                    raise BadInput(
                        f"process {other} and process {process} of the worker have different values of "
                        f"{part[0]}, which is frozen",
                        means="they compute with the same model, of which nothing trains this tensor",
                        do="build the model with the same random numbers in all processes, not by RANK",
                    )

    def _replace(self, source: nn.Parameter) -> nn.Parameter:
        local = nn.Parameter(get_local(source.detach()))
        self._locals.append(local)
        self._sources[id(local)] = source
        return local

    @property
    def names(self) -> dict[nn.Parameter, str]:
        """The names that the trained local parts, and the frozen parameters, have in the model."""
        return {one: self._names[id(self.find_source(one))] for one in (*self._locals, *self._frozen)}

    def find_source(self, local: nn.Parameter) -> nn.Parameter:
        """Return the model's own parameter of a local part: the parameter itself if it is frozen."""
        return self._sources.get(id(local), local)

    def read_whole(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return the whole of a parameter; all processes call this at the same time."""
        whole = parameter.detach()
        return whole.full_tensor() if isinstance(whole, DTensor) else whole

    def find_boxes(self, parameter: torch.Tensor) -> Sequence[Box]:
        """Return the part of the whole parameter that each process has."""
        return self._boxes[id(self._sources.get(id(parameter), parameter))]

    def find_largest(self, local: nn.Parameter) -> tuple[int, ...]:
        """Return the sizes of the largest part of any process, the same in all of them."""
        return max(self.find_boxes(local), key=lambda box: box.elements).sizes

    def count_reserved(self, local: nn.Parameter) -> int:
        """Return the elements to reserve for a part: those of the largest one of all processes."""
        most = max(box.elements for box in self.find_boxes(local))
        return -(-most // ALIGNED) * ALIGNED

    def find_whole(self, local: nn.Parameter) -> WholeTensor:
        """Return the parameter of which this process has a part."""
        shape = tuple(self.find_source(local).shape)
        stride = tuple(torch.empty(shape, device="meta").stride())
        return WholeTensor(shape, stride, self.find_boxes(local)[self._number].offsets)

    def is_copy(self, local: nn.Parameter) -> bool:
        """Return whether a process with a smaller number has the same part."""
        boxes = self.find_boxes(local)
        return boxes.index(boxes[self._number]) < self._number

    def list_copies(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the trained parts that several processes have, with names that are the same in all."""
        for local in self._locals:
            boxes = self.find_boxes(local)
            own = boxes[self._number]
            if own.elements and boxes.count(own) > 1:
                yield f"{self._names[id(self.find_source(local))]} of process {boxes.index(own)}", local

    def describe(self) -> str:
        """Return a digest of the division, which is the same in all processes of all workers."""
        parts = [(name, self.find_boxes(one)) for one, name in self.names.items()]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def check_data(self, places: Sequence[DataPlace]) -> None:
        """Check that a gradient is that of the microbatches of all processes.

        Args:
            places: of each process in the data dimension.

        Raises:
            BadInput: a gradient would lack some, or would differ between processes.
        """
        summed = {
            id(parameter.sharded_param): _adds_all(group.mesh_info, places)
            for module in self._modules
            for group in _list_groups(module)
            for parameter in group.fsdp_params
        }
        for source in self._sources.values():
            boxes, name = self._boxes[id(source)], self._names[id(source)]
            numbers: dict[Box, set[tuple[int, int]]] = {}
            for box, place in zip(boxes, places, strict=True):
                if box.elements:
                    numbers.setdefault(box, set()).add((place.number, place.part))
            differs = any(len(some) > 1 for some in numbers.values())
            if differs or not summed.get(id(source), places[0].size == 1):
                raise BadInput(
                    f"{name} is not divided among the {places[0].size * places[0].parts} processes of the "
                    "worker that compute different microbatches, or parts of one",
                    means="its gradient would differ between them; DDP and HSDP's replicate dimension inside "
                    "a worker are not exact, because Elastane is the replicate dimension",
                    do="call fully_shard(model) over them, in their order, before the optimizer is built; or "
                    "name the data dimension: run.steps(..., data=mesh['dp']); without a model that must be "
                    "divided, leave --processes out and use more workers",
                )

    def place(self, places: Iterable[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """Let the model use the memory of the run.

        Args:
            places: a local part, or a frozen parameter, and flat memory that begins with its elements; there
                is as much as is reserved.
        """
        gathered = {
            id(one.sharded_param): one
            for module in self._modules
            for group in _list_groups(module)
            for one in group.fsdp_params
        }
        for local, flat in places:
            source = self.find_source(local)
            if one := gathered.get(id(source)):
                # FSDP replaces the memory of a part when the part is in other memory than this.
                one._sharded_param_data = flat[: one.padded_sharded_param_size.numel()]
            box = self.find_boxes(local)[self._number]
            # Not the local part's own tensor: the optimizer's changes are none of the script.
            set_local(source, flat[: box.elements].view(box.sizes).data)

    def reshard(self) -> None:
        """Let FSDP gather all values anew when it needs them."""
        for module in self._modules:
            module.reshard()


def _list_groups(module: FSDPModule) -> list[Any]:
    """Return the groups of parameters that a module gathers at once."""
    state = module._get_fsdp_state()
    # Before torch 2.13 a module has one group, or none.
    groups = getattr(state, "_fsdp_param_groups", None)
    return [one for one in ([state._fsdp_param_group] if groups is None else groups) if one is not None]


def _adds_all(mesh_info: object, places: Sequence[DataPlace]) -> bool:
    """Return whether FSDP adds the gradients of all microbatches that processes compute at the same time.

    It adds them in the order of the places, and those of the parts of a microbatch first. The gradient of a
    parameter that only processes with the same part have, such as an expert, is complete without the others.
    """
    group = getattr(mesh_info, "shard_process_group", None)
    if group is None or hasattr(mesh_info, "replicate_process_group"):
        return False
    ranks = dist.get_process_group_ranks(group)
    size, parts = range(places[0].size), range(places[0].parts)
    found = [(places[rank].number, places[rank].part) for rank in ranks]
    return found in ([(n, part) for n in size for part in parts], [(n, found[0][1]) for n in size])


def _find_box(name: str, parameter: nn.Parameter) -> Box:
    """Return the part of a parameter that this process has."""
    shape = tuple(parameter.shape)
    if not isinstance(parameter, DTensor):
        return Box((0,) * len(shape), shape)
    mesh = parameter.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None, "this process has the parameter"
    offsets, sizes = [0] * len(shape), [*shape]
    for dim in _list_dims(parameter.placements):
        placement = parameter.placements[dim]
        axis = placement.dim  # type: ignore[attr-defined]
        rows = -(-sizes[axis] // mesh.size(dim))
        first = min(rows * coordinate[dim], sizes[axis])
        offsets[axis] += first
        sizes[axis] = min(rows, sizes[axis] - first)
    local = tuple(get_local(parameter).shape)
    if tuple(sizes) != local or any(placement.is_partial() for placement in parameter.placements):
        raise BadInput(
            f"this process has {list(local)} of {name}, which is {list(shape)} divided by "
            f"{parameter.placements} over {mesh}",
            means="the run carries rectangles, as fully_shard and parallelize_module make them",
            do="choose sizes that the numbers of processes divide, or another placement",
        )
    return Box(tuple(offsets), tuple(sizes))


def _list_dims(placements: Sequence[Placement]) -> list[int]:
    """Return the dims of the mesh over which a tensor is divided, in the order of the divisions.

    FSDP divides what tensor parallelism has divided, although its dim of the mesh comes first.
    """
    first = [dim for dim, placement in enumerate(placements) if type(placement) is Shard]
    later = [dim for dim, placement in enumerate(placements) if isinstance(placement, _StridedShard)]
    return [*first, *reversed(later)]


def _check_parameters(model: nn.Module, optimizer: Optimizer, processes: int) -> None:
    if not dist.is_initialized():
        raise BadInput(
            f"the script has not divided the model among the {processes} processes of the worker",
            means="--processes starts that many for each worker, and this one has no process group",
            do='call torch.distributed.init_process_group("gloo"), then fully_shard(model); without a model '
            "that must be divided, leave --processes out and use more workers",
        )
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        if get_local(parameter).device.type != "cpu":
            raise BadInput(
                f"{name} is on {parameter.device.type}",
                means="so far a worker of several processes trains on the CPU",
                do="use one process per GPU: leave --processes out, and let --workers be the number of GPUs",
            )
        if id(parameter) not in trained and parameter.requires_grad:
            raise BadInput(
                f"the optimizer does not train {name}, which requires a gradient",
                means="the processes would add gradients that nothing uses",
                do="freeze it before fully_shard, with requires_grad_(False); or give it to the optimizer",
            )
    if unknown := trained - {id(parameter) for parameter in model.parameters()}:
        raise BadInput(
            f"the optimizer has {len(unknown)} parameters that the model does not have",
            means="fully_shard has replaced them, or they belong to another module",
            do="build the optimizer with model.parameters() after fully_shard and parallelize_module",
        )
    if optimizer.state:
        raise BadInput(
            "the optimizer has made steps before run.prepare",
            means="a worker of several processes cannot take over the state of divided parameters yet",
            do="pass a new optimizer",
        )


def _check_names(found: Sequence[dict[str, Box]], verb: str) -> None:
    """Check that all processes train, or have, the same parameters, in the same order."""
    for process, boxes in enumerate(found):
        if list(boxes) != list(found[0]):
            other = next(iter(boxes.keys() ^ found[0].keys()), "them in the same order")
            raise BadInput(
                f"process 0 and process {process} of the worker do not both {verb} {other}",
                means="each process has a part of every parameter; stages of a pipeline are refused: each "
                "microbatch is a virtual rank, and a pipeline with one at a time is mostly empty",
                do="divide the model by fully_shard, parallelize_module or both; build the optimizer with "
                "all of its parameters",
            )


def _check_boxes(name: str, parameter: nn.Parameter, boxes: Sequence[Box]) -> None:
    """Check that the parts of all processes are the whole parameter, copies counted once."""
    filled = [box for box in dict.fromkeys(boxes) if box.elements]
    if problem := find_tiling_problem(tuple(parameter.shape), filled):
        raise BadInput(
            f"the processes of the worker do not have {name} once: {problem}",
            means="the parts of a parameter in all processes must be the whole of it",
            do="divide the model by fully_shard, parallelize_module or both, over all processes of a worker",
        )
