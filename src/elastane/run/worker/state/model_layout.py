"""The flat layout of a model: the position of each parameter and buffer, and the division into blocks."""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import msgspec
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elastane.common.errors import BadInput
from elastane.run.checkpoints.rectangles import Box
from elastane.run.protocol.layout import Block, cut_blocks
from elastane.run.worker.state.divided_tensors import get_local, is_shard
from elastane.run.worker.state.shared_memory import Section
from elastane.run.worker.state.square_sums import Rows
from elastane.run.worker.state.tensor_bytes import raw_bytes

TRAINED_ON = ("cpu", "cuda")
MOST_IN_ROW, FEWEST_IN_ROW = 1024, 8
"""Limits of the elements of a row: longer ones would be less exact in float32, shorter ones slower."""

WIDENED = {
    torch.bool: torch.int32,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    # It wraps around: the bits of sums and differences are the same with and without a sign.
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
    torch.float8_e8m0fnu: torch.float32,
    torch.complex32: torch.complex64,
}
"""Buffer types without the sums or the range for changes, with the type for their sums and storage."""


class WholeTensor(msgspec.Struct, frozen=True):
    """The tensor of which a process has a rectangle, as checkpoints store it.

    Args:
        corner: of the rectangle, per dim.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    corner: tuple[int, ...]


class Extent(msgspec.Struct, frozen=True):
    """The position of one tensor: elements ``[start, stop)`` of a section, in the tensor's memory order.

    Args:
        name: the name of the parameter or buffer in the model.
        section: the number of the flat buffer.
        shape: the shape of the tensor.
        stride: the strides of the tensor, which are dense.
        part_of: the tensor of which this is a part; None: it is whole.
        is_copy: another process of the worker has the same elements, and counts them.
    """

    name: str
    section: int
    start: int
    stop: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    part_of: WholeTensor | None = None
    is_copy: bool = False

    @property
    def whole(self) -> WholeTensor:
        """The whole tensor: another one if this is a part of it."""
        return self.part_of or WholeTensor(self.shape, self.stride, (0,) * len(self.shape))

    @property
    def box(self) -> Box | None:
        """The part of the whole tensor that this is; None: it is whole."""
        return None if self.part_of is None else Box(self.part_of.corner, self.shape)

    def view(self, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return a view of this tensor in an arena's sections."""
        return tensors[self.section].as_strided(self.shape, self.stride, self.start)

    def flatten(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of this shape as 1-D, in the extent's memory order; a view if possible."""
        if tensor.stride() == self.stride:
            return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
        dense = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        dense.as_strided(self.shape, self.stride).copy_(tensor)
        return dense

    def view_flat(self, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return a 1-D view of this tensor's elements in an arena's sections, in memory order."""
        return tensors[self.section][self.start : self.stop]


class Piece(msgspec.Struct, frozen=True):
    """The part of a tensor in one block: elements ``[start, stop)`` of parameter or buffer ``number``."""

    number: int
    start: int
    stop: int


class AveragedBuffers(Protocol):
    """The state that virtual ranks average, as buffers; see `averaged_state.AveragedState`."""

    module: nn.Module

    def list_buffers(self) -> Iterable[tuple[str, str]]: ...


def _list_buffers(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    for prefix, module in model.named_modules():
        for name, _ in module.named_buffers(prefix="", recurse=False):
            yield module, name, f"{prefix}.{name}" if prefix else name


def _find_device(optimizer: torch.optim.Optimizer) -> torch.device:
    """Return the device of the first trained parameter; all others must be on the same device."""
    trained = (p for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
    return next((parameter.device for parameter in trained), torch.device("cpu"))


def _compute_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the tensor's own strides if it is dense (contiguous, channels last), else contiguous ones."""
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), tensor.shape[d]), reverse=True)
    expected = 1
    for dim in reversed(order):
        if tensor.shape[dim] > 1 and tensor.stride(dim) != expected:
            return tuple(torch.empty(tensor.shape, device="meta").stride())
        expected *= tensor.shape[dim]
    return tuple(tensor.stride())


def _cut_pieces(block: Block, extents: list[Extent]) -> Iterator[Piece]:
    for number, extent in enumerate(extents):
        start, stop = max(extent.start, block.start), min(extent.stop, block.stop)
        if extent.section == block.section and start < stop:
            yield Piece(number, start - extent.start, stop - extent.start)


class ParameterShards(Protocol):
    """The local shards of the parameters of a divided model; see `local_shards.LocalShards`."""

    @property
    def names(self) -> Mapping[nn.Parameter, str]: ...
    def find_source(self, local: nn.Parameter) -> torch.Tensor: ...
    def count_reserved(self, local: nn.Parameter) -> int: ...
    def find_largest(self, local: nn.Parameter) -> tuple[int, ...]: ...
    def find_whole(self, local: nn.Parameter) -> WholeTensor: ...
    def is_copy(self, local: nn.Parameter) -> bool: ...
    def read_whole(self, parameter: nn.Parameter) -> torch.Tensor: ...


class ModelLayout:
    """The layout: a section per parameter group and data type, then a section of buffers per data type.

    The last sections are those of the averaged state of an inner optimizer: first its counters.

    Args:
        model: any module; parameters shared between modules count once.
        optimizer: the optimizer that has the trained parameters in its groups.
        shards: the local shards that the optimizer trains; None: it trains the model's own parameters.
        averaged: the state of the inner optimizer that virtual ranks average; None: they begin without any.

    Attributes:
        device: the device of all trained parameters and laid-out buffers.
        parameters: the trained parameters, in order; tied ones once.
        has_reserves: sections have elements between parameters that this process does not use, because
            other processes of the worker have more rows of a tensor.
        sources: the tensors in which autograd leaves the gradients: the model's own parameters.
        extents: the extent of each parameter.
        frozen: the parameters that are not trained.
        divided_frozen: those of them of which this process has a part.
        frozen_extents: the extent of each of these, in memory of their own.
        frozen_sections: the sections of that memory, one per data type.
        groups: the number of each parameter's group.
        buffers: ``(module, name)`` of every buffer that training may change.
        buffer_extents: the extent of each buffer.
        sections: the sections of parameters, then those of buffers.
        parameter_sections: the number of sections of parameters.
        first_averaged: the number of the first section of averaged state.
        first_moments: likewise, of those with an element for each element of a parameter.
        blocks: fixed slices of the sections.
        row_sizes: the elements of a row of each parameter, of which blocks have whole ones; 1: no rows.
        pieces: per block, the parts of parameters in it; empty for blocks of buffers.
        buffer_pieces: per block, the parts of buffers in it; empty for blocks of parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        shards: ParameterShards | None = None,
        averaged: AveragedBuffers | None = None,
    ) -> None:
        _refuse_lazy(model)
        self._shards = shards
        self.has_reserves = shards is not None
        names = (
            {parameter: name for name, parameter in model.named_parameters()}
            if shards is None
            else dict(shards.names)
        )
        self._modules = dict(model.named_modules())
        self._structure = _describe_structure(self._modules.values())
        self.device = _find_device(optimizer)
        self.sections: list[Section] = []
        self.parameters: list[nn.Parameter] = []
        self.extents: list[Extent] = []
        self.groups: list[int] = []
        self._place_parameters(names, optimizer)
        self.sources: list[torch.Tensor] = [
            parameter if shards is None else shards.find_source(parameter) for parameter in self.parameters
        ]
        self.parameter_sections = len(self.sections)
        self.buffers: list[tuple[nn.Module, str]] = []
        self.buffer_dtypes: list[torch.dtype] = []
        self.buffer_extents: list[Extent] = []
        self._place_buffers(_list_buffers(model))
        self.first_averaged = self.first_moments = len(self.sections)
        if averaged is not None:
            self._place_averaged(averaged)
        _refuse_shared_memory(model, self.parameters)
        trained = {id(parameter) for parameter in self.parameters}
        self.frozen = [p for p in names if id(p) not in trained]
        self.divided_frozen = [p for p in self.frozen if is_shard(p)]
        self.frozen_extents: list[Extent] = []
        self.frozen_sections: list[Section] = []
        self._place_frozen(names)
        in_groups = [p for group in optimizer.param_groups for p in group["params"]]
        self._frozen_in_groups = [(names.get(p, "?"), p) for p in in_groups if not p.requires_grad]
        self._groups = [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
        self.row_sizes = [
            find_row_size(extent.shape if shards is None else shards.find_largest(parameter))
            for parameter, extent in zip(self.parameters, self.extents, strict=True)
        ]
        self.blocks = align_blocks(
            cut_blocks([each.elements for each in self.sections]), self._find_row_begin
        )
        self.pieces = tuple(tuple(_cut_pieces(block, self.extents)) for block in self.blocks)
        self._rows = [self._find_rows(number) for number in range(len(self.blocks))]
        self.buffer_pieces = tuple(tuple(_cut_pieces(block, self.buffer_extents)) for block in self.blocks)
        self.parameter_blocks = self._find_parameter_blocks()

    def _place_parameters(self, names: dict[nn.Parameter, str], optimizer: torch.optim.Optimizer) -> None:
        for number, group in enumerate(optimizer.param_groups):
            by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.requires_grad:
                    by_dtype.setdefault(parameter.dtype, []).append(parameter)
            for dtype, parameters in by_dtype.items():
                start = 0
                for parameter in parameters:
                    self._check_device("parameter", names.get(parameter, "?"), parameter)
                    if parameter not in names:
                        raise BadInput(
                            "the optimizer has a parameter that the model does not",
                            means="a worker that joins could not receive it",
                            do="pass the module that holds every trained parameter to run.prepare",
                        )
                    stop = start + parameter.numel()
                    self.parameters.append(parameter)
                    self.groups.append(number)
                    shape, stride = tuple(parameter.shape), _compute_stride(parameter)
                    section = len(self.sections)
                    name, whole, is_copy = names[parameter], None, False
                    if self._shards is not None:
                        stride = tuple(torch.empty(shape, device="meta").stride())
                        whole, is_copy = self._shards.find_whole(parameter), self._shards.is_copy(parameter)
                        stop = start + self._shards.count_reserved(parameter)
                    extent = Extent(
                        name, section, start, start + parameter.numel(), shape, stride, whole, is_copy
                    )
                    self.extents.append(extent)
                    start = stop
                self.sections.append(Section(dtype, start))
        if not self.parameters:
            raise BadInput(
                "the optimizer trains no parameter",
                means="none of its parameters requires a gradient",
                do="check requires_grad and the parameters given to the optimizer",
            )

    def _place_frozen(self, names: Mapping[nn.Parameter, str]) -> None:
        dtypes = [*dict.fromkeys(parameter.dtype for parameter in self.divided_frozen)]
        ends = [0] * len(dtypes)
        for parameter in self.divided_frozen:
            assert self._shards is not None, "only a divided model has parts of parameters"
            section, shape = dtypes.index(parameter.dtype), tuple(get_local(parameter).shape)
            start, stride = ends[section], tuple(torch.empty(shape, device="meta").stride())
            ends[section] += self._shards.count_reserved(parameter)
            self.frozen_extents.append(
                Extent(
                    names[parameter],
                    section,
                    start,
                    start + math.prod(shape),
                    shape,
                    stride,
                    self._shards.find_whole(parameter),
                    self._shards.is_copy(parameter),
                )
            )
        self.frozen_sections = [Section(*each) for each in zip(dtypes, ends, strict=True)]

    def _place_averaged(self, averaged: AveragedBuffers) -> None:
        found = [(averaged.module, name, full) for name, full in averaged.list_buffers()]
        counters = [entry for entry in found if not entry[0].get_buffer(entry[1]).dim()]
        self._place_buffers(counters)
        self.first_moments = len(self.sections)
        self._place_buffers(found[len(counters) :])

    def _place_buffers(self, found: Iterable[tuple[nn.Module, str, str]]) -> None:
        """Place buffers, each given by its module, its name there and its whole name."""
        seen: set[int] = set()
        by_dtype: dict[torch.dtype, list[tuple[nn.Module, str, str]]] = {}
        for module, name, full in found:
            buffer = module.get_buffer(name)
            is_cache = name in module._non_persistent_buffers_set
            if buffer.layout is not torch.strided or (buffer.is_quantized and not is_cache):
                raise _build_layout_error(full, buffer)
            stored_dtype = WIDENED.get(buffer.dtype, buffer.dtype)
            is_supported = (
                stored_dtype.is_floating_point
                or stored_dtype.is_complex
                or stored_dtype in (torch.int64, torch.int32)
            )
            # Torch defines non-persistent buffers as caches, so every worker has its own.
            if is_cache or not is_supported or buffer.numel() == 0 or id(buffer) in seen:
                continue
            seen.add(id(buffer))
            self._check_device("buffer", full, buffer)
            by_dtype.setdefault(stored_dtype, []).append((module, name, full))
        for dtype, buffers in by_dtype.items():
            start = 0
            for module, name, full in buffers:
                buffer = module.get_buffer(name)
                stop = start + buffer.numel()
                shape, stride = tuple(buffer.shape), _compute_stride(buffer)
                self.buffers.append((module, name))
                self.buffer_dtypes.append(buffer.dtype)
                self.buffer_extents.append(Extent(full, len(self.sections), start, stop, shape, stride))
                start = stop
            self.sections.append(Section(dtype, start))

    def _check_device(self, kind: str, name: str, tensor: torch.Tensor) -> None:
        if tensor.device.type not in TRAINED_ON:
            raise BadInput(
                f"{kind} {name} is on {tensor.device}",
                means="a model is trained on the CPU or on a CUDA device",
                do='move the model before the optimizer is built: model.to("cuda"), or leave it on the CPU',
            )
        if tensor.device != self.device:
            raise BadInput(
                f"{kind} {name} is on {tensor.device}, the first parameter on {self.device}",
                means="a worker trains on one device",
                do="move the whole model to one device before the optimizer is built",
            )

    def _find_parameter_blocks(self) -> tuple[tuple[int, ...], ...]:
        blocks_of_parameters: list[list[int]] = [[] for _ in self.parameters]
        for block, pieces in enumerate(self.pieces):
            for piece in pieces:
                blocks_of_parameters[piece.number].append(block)
        return tuple(tuple(blocks) for blocks in blocks_of_parameters)

    @property
    def elements(self) -> int:
        """The number of trained elements, of all processes of the worker together."""
        return sum(math.prod(extent.whole.shape) for extent in self.extents)

    def view_block(self, tensors: tuple[torch.Tensor, ...], number: int) -> torch.Tensor:
        """Return a 1-D view of block ``number`` in an arena's sections."""
        block = self.blocks[number]
        return tensors[block.section][block.start : block.stop]

    def _find_row_begin(self, section: int, position: int) -> int:
        """Return the last position up to this one at which no row of a parameter is cut."""
        # Positions without an element here belong to the parameter before: other processes have more of it.
        number = (
            bisect_right(self.extents, (section, position), key=lambda each: (each.section, each.start)) - 1
        )
        if number < 0 or self.extents[number].section != section:
            return position
        return position - (position - self.extents[number].start) % self.row_sizes[number]

    def list_rows(self, flat: torch.Tensor, number: int) -> list[Rows]:
        """Return the rows of block ``number``, except those that another process of the worker counts.

        Args:
            flat: the elements of the block.
        """
        return [Rows(flat[first:last], size) for first, last, size in self._rows[number]]

    def _find_rows(self, number: int) -> list[tuple[int, int, int]]:
        """Return the beginning, the end and the size of neighbouring rows of a block."""
        found: list[tuple[int, int, int]] = []
        for piece in self.pieces[number]:
            extent, size = self.extents[piece.number], self.row_sizes[piece.number]
            if extent.is_copy:
                continue
            first, last = (extent.start + at - self.blocks[number].start for at in (piece.start, piece.stop))
            rest = (last - first) % size
            if found and found[-1][1:] == (first, size):
                first = found.pop()[0]
            found += [(first, last - rest, size), (last - rest, last, 1)] if rest else [(first, last, size)]
        return found

    def is_buffers(self, block: int) -> bool:
        """Return whether the block has buffers, or averaged state, and no parameters."""
        return self.blocks[block].section >= self.parameter_sections

    @cached_property
    def alike_blocks(self) -> tuple[tuple[int, ...], ...]:
        """The blocks, divided by type and place, so that one call of torch can process those of a part."""
        parts: dict[tuple[torch.dtype, bool], list[int]] = {}
        for number, block in enumerate(self.blocks):
            parts.setdefault((self.sections[block.section].dtype, self.is_buffers(number)), []).append(number)
        return tuple(map(tuple, parts.values()))

    def check_unchanged(self, optimizer: torch.optim.Optimizer, values: tuple[torch.Tensor, ...]) -> None:
        """Check that the script has not changed the model's layout since `run.prepare`.

        Args:
            values: the sections of which the parameters are views.

        Raises:
            BadInput: the script replaced parts of the model, moved or unfroze parameters, or changed groups.
        """
        # A change shows in the module that contains the added or removed part.
        structure = _describe_structure(self._modules.values())
        if structure != self._structure:
            pairs = zip(self._modules, structure, self._structure, strict=True)
            path = next(path for path, current, original in pairs if current != original)
            raise BadInput(
                f"{path or 'the model'} has other parameters, modules or buffers than in run.prepare",
                means="run.prepare lays out the trained parameters, so later ones would not be trained",
                do="build the whole model, prune it and replace its layers before run.prepare",
            )
        starts = [section.data_ptr() for section in values[: self.parameter_sections]]
        trained = (self.parameters,) if self._shards is None else (self.parameters, self._list_local())
        moved = [
            extent.name
            for tensors in trained
            for tensor, extent in zip(tensors, self.extents, strict=True)
            if tensor.numel()
            and tensor.data_ptr() != starts[extent.section] + extent.start * tensor.element_size()
        ]
        if moved:
            raise BadInput(
                f"{moved[0]} has other memory than in run.prepare, by assigning .data or by moving the model",
                means="the run trains the memory of run.prepare, so values elsewhere would not be trained",
                do="copy the values into it: parameter.data.copy_(values)",
            )
        unfrozen = next((name for name, parameter in self._frozen_in_groups if parameter.requires_grad), None)
        if unfrozen is not None:
            raise BadInput(
                f"requires_grad of {unfrozen} was set to True after run.prepare",
                means="run.prepare lays out the trained parameters, and this one was frozen then",
                do="call run.prepare while it requires a gradient, and freeze it after that",
            )
        ids = [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
        if ids != self._groups:
            raise BadInput(
                "the parameter groups of the optimizer were changed after run.prepare, as by add_param_group",
                means="run.prepare lays out the optimizer's state, so later groups would not be trained",
                do="build the optimizer with all its groups; a group with lr=0 is not trained yet",
            )

    def _list_local(self) -> list[torch.Tensor]:
        """Return this process's part of each of the model's own parameters."""
        return [get_local(source) for source in self.sources]

    def digest(self) -> str:
        """Return the SHA-256 of names, shapes and types of whole tensors, and of frozen values.

        All processes of a worker call this at the same time.
        """
        described = [
            (extent.name, extent.whole.shape, str(self.sections[extent.section].dtype))
            for extent in (*self.extents, *self.buffer_extents)
        ]
        digest = hashlib.sha256(repr(described).encode())
        for parameter in self.frozen:
            digest.update(
                raw_bytes(parameter if self._shards is None else self._shards.read_whole(parameter))
            )
        return digest.hexdigest()


def find_row_size(shape: tuple[int, ...]) -> int:
    """Return the elements of the rows of a tensor of this shape that are reduced to their norms; 1: none.

    A row is a part of what one index of the first dim has, so a division of that dim cuts none.
    """
    inner = math.prod(shape[1:])
    return next(
        (size for size in range(MOST_IN_ROW, FEWEST_IN_ROW - 1, -1) if inner and inner % size == 0), 1
    )


def align_blocks(blocks: Sequence[Block], move: Callable[[int, int], int]) -> tuple[Block, ...]:
    """Return the blocks with their borders moved, except the beginnings and the ends of sections.

    Args:
        move: takes a section and a position in it, and returns another position, less than the size of a
            block before.
    """
    ends = {block.section: block.stop for block in blocks}
    return tuple(
        Block(
            block.section,
            move(block.section, block.start),
            block.stop if block.stop == ends[block.section] else move(block.section, block.stop),
        )
        for block in blocks
    )


def _refuse_lazy(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise BadInput(
                f"{name} is lazy and has no shape yet",
                means="run.prepare lays out the trained parameters by their shapes",
                do="run one forward pass on a batch before the optimizer is built and run.prepare is called",
            )


def _refuse_shared_memory(model: nn.Module, trained: Iterable[nn.Parameter]) -> None:
    """Refuse trained parameters that share memory with other tensors of the model, as views of one tensor do.

    A run moves each of them into memory of its own, and a change of one would no longer change the other.
    """
    tensors: dict[str, torch.Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for path, module in model.named_modules():
        plain = {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}
        tensors |= {f"{path}.{name}" if path else name: value for name, value in plain.items()}
    ranges = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name, tensor)
        for name, tensor in tensors.items()
        if tensor.layout is torch.strided and tensor.data_ptr() and _is_dense(tensor)
    )
    ids = {id(parameter) for parameter in trained}
    for (_, stop, name, tensor), (start, _, other, second) in pairwise(ranges):
        if start < stop and tensor is not second and not ids.isdisjoint((id(tensor), id(second))):
            raise BadInput(
                f"{name} and {other} share memory",
                means="the run moves each trained parameter into memory of its own, so they would part",
                do="use one parameter in both places; or take the parts in forward from one parameter, such "
                "as whole[:n] and whole[n:]; or use spectral_norm of torch.nn.utils.parametrizations",
            )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has all elements of its range of memory, as all but strided views do."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span + 1 == tensor.numel()


def _build_layout_error(name: str, buffer: torch.Tensor) -> BadInput:
    kind = "quantized" if buffer.is_quantized else str(buffer.layout).removeprefix("torch.")
    return BadInput(
        f"the buffer {name} is {kind}",
        means="a run carries the memory of dense tensors to workers that join",
        do="register its dense parts, such as indices and values, and build it from them in forward; or keep "
        "it in a plain attribute of the module, if it never changes",
    )


def _describe_structure(modules: Iterable[nn.Module]) -> list[tuple[int, ...]]:
    """Identify the parts of each module that a script may not replace: parameters, modules, buffers."""
    return [
        (
            *map(id, module._parameters.values()),
            *map(id, module._modules.values()),
            len(module._buffers.keys() - module._non_persistent_buffers_set),
        )
        for module in modules
    ]


def check_dense(layout: ModelLayout) -> None:
    """Check that extents tile their sections; a gap or overlap would silently train wrong elements."""
    for section in range(len(layout.sections)):
        extents = [p for p in (*layout.extents, *layout.buffer_extents) if p.section == section]
        borders = [(p.start, p.stop) for p in extents]
        if any(
            left[1] > right[0] or (left[1] < right[0] and not layout.has_reserves)
            for left, right in pairwise(borders)
        ):
            raise AssertionError(f"section {section} has gaps: {borders}")
