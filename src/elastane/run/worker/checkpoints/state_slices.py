"""The slices of a worker's training state that a checkpoint stores."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import torch

from elastane.run.worker.checkpoints.part_encoding import TensorSlice, slice_whole
from elastane.run.worker.checkpoints.tensor_keys import EXTRA, MODEL, OPTIMIZER_STATE, build_value_key
from elastane.run.worker.state.model_layout import Extent, Piece
from elastane.run.worker.state.replicated_state import UNTRAINED
from elastane.run.worker.state.training_state import TrainingState


def list_slices(
    state: TrainingState, blocks: Iterable[int], *, replicated: bool = True
) -> Iterator[TensorSlice]:
    """Yield views of the state of some blocks; block 0 also includes the tensors that are not trained.

    Args:
        replicated: include these; False: another process of the worker does.
    """
    layout, tensors = state.layout, state.arena.tensors
    blocks = tuple(blocks)
    with state.placement.use_side_stream():
        state.placement.update_arena(blocks)
    for block in blocks:
        for piece in layout.buffer_pieces[block]:
            entry = _slice(layout.buffer_extents[piece.number], piece, tensors)
            # Readers of the file expect the type that the model has.
            dtype = layout.buffer_dtypes[piece.number]
            yield msgspec.structs.replace(entry, data=entry.data.to(dtype))
        for piece in layout.pieces[block]:
            extent = layout.extents[piece.number]
            if extent.is_copy:
                continue
            yield _slice(extent, piece, tensors)
            yield from _slice_optimizer(state, block, piece, extent)
        if block == 0:
            yield from _slice_frozen(state)
        if block == 0 and replicated:
            yield from _slice_untrained(state)
            yield from _slice_replicated(state)


def _slice(extent: Extent, piece: Piece, tensors: tuple[torch.Tensor, ...]) -> TensorSlice:
    data = extent.view_flat(tensors)[piece.start : piece.stop]
    return slice_part(build_value_key(extent.name), extent, piece, data)


def slice_part(key: str, extent: Extent, piece: Piece, data: torch.Tensor) -> TensorSlice:
    """Return the slice of a whole tensor that a piece of it is."""
    whole = extent.whole
    return TensorSlice(key, whole.shape, whole.stride, piece.start, piece.stop, data, extent.box)


def _slice_optimizer(state: TrainingState, block: int, piece: Piece, extent: Extent) -> Iterator[TensorSlice]:
    for key, entry in state.shards.read_piece_state(block, piece).items():
        name = f"{OPTIMIZER_STATE}{extent.name}.{key}"
        if not isinstance(entry, torch.Tensor):
            continue
        if state.shards.is_elementwise(piece, key):
            yield slice_part(name, extent, piece, entry)
        elif is_first(extent, piece):
            yield slice_whole(name, entry)


def is_first(extent: Extent, piece: Piece) -> bool:
    """Return whether a whole tensor begins with this piece, in the process that counts it."""
    return not (extent.is_copy or any(extent.whole.corner) or piece.start)


def _slice_frozen(state: TrainingState) -> Iterator[TensorSlice]:
    """Yield the parts of frozen parameters that this process has, for foreign readers."""
    for extent in state.layout.frozen_extents:
        if state.frozen is not None and not extent.is_copy and extent.stop > extent.start:
            data, elements = extent.view_flat(state.frozen.tensors), extent.stop - extent.start
            yield slice_part(MODEL + extent.name, extent, Piece(0, 0, elements), data)


def _slice_untrained(state: TrainingState) -> Iterator[TensorSlice]:
    """Yield whole frozen parameters and constant buffers, for foreign readers; the script creates its own."""
    layout = state.layout
    others = {extent.name for extent in (*layout.extents, *layout.buffer_extents, *layout.frozen_extents)}
    aliases = state.find_aliases()
    for name, tensor in state.read_stored().items():
        if name not in others and name not in aliases:
            yield slice_whole(MODEL + name, tensor)


def _slice_replicated(state: TrainingState) -> Iterator[TensorSlice]:
    """Yield tensors of the replicated state, except those that are stored as part of the model."""
    in_model = {f"{UNTRAINED}.{name}" for name in state.list_names()}
    for name, tensor in state.replicated.describe()[1].items():
        if name not in in_model:
            yield slice_whole(EXTRA + name, tensor.cpu())


def find_host_keys(state: TrainingState) -> list[str]:
    """Return the keys of optimizer state on the host if the model is on a device (counters)."""
    for block, pieces in enumerate(state.layout.pieces):
        for piece in pieces:
            if entries := state.shards.read_piece_state(block, piece):
                tensors = {key: entry for key, entry in entries.items() if isinstance(entry, torch.Tensor)}
                return sorted(key for key, tensor in tensors.items() if tensor.device != state.layout.device)
    return []


def collect_scalars(state: TrainingState, blocks: Iterable[int]) -> dict[str, dict[str, Any]]:
    """Return the plain values of optimizer state, for the parameters that begin in these blocks."""
    scalars: dict[str, dict[str, Any]] = {}
    for block in blocks:
        for piece in state.layout.pieces[block]:
            if is_first(state.layout.extents[piece.number], piece):
                entries = state.shards.read_piece_state(block, piece)
                plain = {key: value for key, value in entries.items() if not isinstance(value, torch.Tensor)}
                if plain:
                    scalars[state.layout.extents[piece.number].name] = plain
    return scalars
