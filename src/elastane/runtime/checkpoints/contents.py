"""The mapping between a worker's training state and the tensors of a checkpoint, in both directions."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import torch

from elastane.api.checkpoints import MANIFEST, FileDamage, Manifest, TensorFacts
from elastane.api.errors import BadInput, Damaged
from elastane.api.safe_text import escape_line
from elastane.api.untrusted_data import decode_object
from elastane.runtime.checkpoints.reader import CheckpointReader, ReadRequest
from elastane.runtime.checkpoints.tensor_slice import TensorSlice, slice_whole
from elastane.runtime.state.model_layout import WIDENED, Extent, Piece
from elastane.runtime.state.replicated_state import UNTRAINED
from elastane.runtime.state.state import TrainingState

MODEL, STATE, EXTRA = "model.", "optimizer.state.", "extra."


def list_slices(state: TrainingState, blocks: Iterable[int]) -> Iterator[TensorSlice]:
    """Yield views of the state of some blocks; block 0 also includes the tensors that are not trained."""
    layout, tensors = state.layout, state.arena.tensors
    blocks = tuple(blocks)
    with state.placement.use_side_stream():
        state.placement.update_arena(blocks)
    for block in blocks:
        for piece in layout.buffer_pieces[block]:
            entry = _slice(MODEL, layout.buffer_extents[piece.number], piece, tensors)
            # Readers of the file expect the type that the model has.
            dtype = layout.buffer_dtypes[piece.number]
            yield msgspec.structs.replace(entry, data=entry.data.to(dtype))
        for piece in layout.pieces[block]:
            extent = layout.extents[piece.number]
            yield _slice(MODEL, extent, piece, tensors)
            yield from _slice_optimizer(state, block, piece, extent)
        if block == 0:
            yield from _slice_untrained(state)
            yield from _slice_replicated(state)


def _slice(prefix: str, extent: Extent, piece: Piece, tensors: tuple[torch.Tensor, ...]) -> TensorSlice:
    data = extent.view_flat(tensors)[piece.start : piece.stop]
    return TensorSlice(prefix + extent.name, extent.shape, extent.stride, piece.start, piece.stop, data)


def _slice_optimizer(state: TrainingState, block: int, piece: Piece, extent: Extent) -> Iterator[TensorSlice]:
    for key, kept in state.shards.read_piece_state(block, piece).items():
        name = f"{STATE}{extent.name}.{key}"
        if not isinstance(kept, torch.Tensor):
            continue
        if state.shards.is_elementwise(piece, key):
            yield TensorSlice(name, extent.shape, extent.stride, piece.start, piece.stop, kept)
        elif piece.start == 0:
            yield slice_whole(name, kept)


def _slice_untrained(state: TrainingState) -> Iterator[TensorSlice]:
    """Yield frozen parameters and constant buffers, for foreign readers; the script creates its own."""
    layout = state.layout
    elsewhere = {extent.name for extent in (*layout.extents, *layout.buffer_extents)} | find_aliases(
        state
    ).keys()
    for name, tensor in state.model.state_dict().items():
        if name not in elsewhere:
            yield slice_whole(MODEL + name, tensor)


def _slice_replicated(state: TrainingState) -> Iterator[TensorSlice]:
    """Yield tensors of the replicated state, except those that are stored as part of the model."""
    model = {f"{UNTRAINED}.{name}" for name in state.model.state_dict()}
    for name, tensor in state.replicated.describe()[1].items():
        if name not in model:
            yield slice_whole(EXTRA + name, tensor.cpu())


def find_aliases(state: TrainingState) -> dict[str, str]:
    """Return the second names of tied tensors, each with the name under which the file has the tensor."""
    first = {id(p): name for name, p in state.model.named_parameters()}
    everyone = state.model.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in everyone if first[id(p)] != name}


def find_host_keys(state: TrainingState) -> list[str]:
    """Return the keys of optimizer state on the host if the model is on a device (counters)."""
    for block, pieces in enumerate(state.layout.pieces):
        for piece in pieces:
            if kept := state.shards.read_piece_state(block, piece):
                tensors = ((key, some) for key, some in kept.items() if isinstance(some, torch.Tensor))
                return sorted(key for key, some in tensors if some.device != state.layout.device)
    return []


def collect_scalars(state: TrainingState, blocks: Iterable[int]) -> dict[str, dict[str, Any]]:
    """Return the plain values of optimizer state, for the parameters that begin in these blocks."""
    found: dict[str, dict[str, Any]] = {}
    for block in blocks:
        for piece in state.layout.pieces[block]:
            if piece.start == 0:
                kept = state.shards.read_piece_state(block, piece)
                plain = {key: value for key, value in kept.items() if not isinstance(value, torch.Tensor)}
                if plain:
                    found[state.layout.extents[piece.number].name] = plain
    return found


# -- back ----------------------------------------------------------------------------------------------------


class StateReader:
    """Reads units of a worker's state from a checkpoint.

    Args:
        reader: the reader of the checkpoint.
        manifest: the manifest of the checkpoint.

    Raises:
        BadInput: the checkpoint belongs to another model.
    """

    def __init__(self, reader: CheckpointReader, manifest: Manifest) -> None:
        self._reader = reader
        self.manifest = manifest
        self._facts = manifest.tensors
        self._arrivals: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._keys: dict[str, list[str]] = {}
        for key in self._facts:
            if key.startswith(STATE):
                name, _, kept = key.removeprefix(STATE).rpartition(".")
                self._keys.setdefault(name, []).append(kept)

    def restore(self, state: TrainingState, values: Iterable[int], states: Iterable[int]) -> int:
        """Read the values of some units and the optimizer state of others, in place.

        Returns:
            The number of bytes read.

        Raises:
            BadInput: the checkpoint belongs to another model.
            Damaged: the data has changed since the write.
            StorageError: the storage does not respond.
        """
        values = tuple(values)
        requests: list[ReadRequest] = []
        extra: dict[str, torch.Tensor] = {}
        for unit in values:
            requests += self._request_values(state, unit)
            if unit == state.units - 1:
                keys = self._find_replicated_keys()
                extra = {name: _allocate(self._facts[key], torch.device("cpu")) for name, key in keys.items()}
                requests += [ReadRequest(keys[name], 0, t.numel(), _flatten(t)) for name, t in extra.items()]
        for unit in states:
            if unit != state.units - 1:
                requests += self._request_states(state, unit)
        self._reader.read_many([*self._redirect_to_host(requests)])
        with state.placement.use_side_stream():
            for device, host in self._arrivals:
                device.copy_(host)
            state.placement.synchronize()
        self._arrivals.clear()
        for unit in values:
            if unit != state.units - 1:
                state.update_model(unit)
            else:
                state.replicated.load(read_replicated_state(self.manifest), extra)
        return sum(request.into.nbytes for request in requests)

    def _find_replicated_keys(self) -> dict[str, str]:
        """Return the tensors of the replicated state, with their keys in the checkpoint."""
        beside = {key.removeprefix(EXTRA): key for key in self._facts if key.startswith(EXTRA)}
        changed = read_replicated_state(self.manifest)["untrained"]
        return {f"{UNTRAINED}.{name}": MODEL + name for name in changed} | beside

    def _redirect_to_host(self, requests: Iterable[ReadRequest]) -> Iterator[ReadRequest]:
        """Yield the requests, with host memory in place of memory of a device or of a wider type."""
        for request in requests:
            dtype = getattr(torch, self._facts[request.key].dtype)
            narrower = WIDENED.get(dtype) == request.into.dtype
            if request.into.device.type == "cpu" and not narrower:
                yield request
            else:
                kind = dtype if narrower else request.into.dtype
                host = torch.empty_like(request.into, device="cpu", dtype=kind)
                self._arrivals.append((request.into, host))
                yield ReadRequest(request.key, request.start, request.stop, host)

    def _request_values(self, state: TrainingState, unit: int) -> Iterator[ReadRequest]:
        layout, tensors = state.layout, state.arena.tensors
        if unit == state.units - 1:
            if state.copies is None:
                for extent in layout.buffer_extents:
                    yield self._request(extent, 0, extent.stop - extent.start, extent.view_flat(tensors))
            return
        for extent, piece in state.shards.list_pieces(unit):
            flat = extent.view_flat(tensors)[piece.start : piece.stop]
            yield self._request(extent, piece.start, piece.stop, flat)

    def _request(self, extent: Extent, start: int, stop: int, into: torch.Tensor) -> ReadRequest:
        key = MODEL + extent.name
        self._check(key, extent)
        return ReadRequest(key, start, stop, into)

    def _check(self, key: str, extent: Extent) -> None:
        facts = self._facts.get(key)
        if facts is None or facts.shape != extent.shape or facts.stride != extent.stride:
            theirs = "not in it" if facts is None else f"{facts.shape} with strides {facts.stride} there"
            raise BadInput(
                f"checkpoint {self.manifest.name} does not fit the model: {extent.name} is "
                f"{extent.shape} with strides {extent.stride} here and {theirs}",
                means="the script builds another model than the saved one",
                do="resume with the script the run began with",
            )

    def _request_states(self, state: TrainingState, unit: int) -> Iterator[ReadRequest]:
        plain: Mapping[str, dict[str, Any]] = self.manifest.plain.get("scalars", {})
        for extent, piece in state.shards.list_pieces(unit):
            facts = {
                key: self._facts[f"{STATE}{extent.name}.{key}"] for key in self._keys.get(extent.name, [])
            }
            if not facts and extent.name not in plain:
                continue  # a buffer, or a parameter that has had no gradient yet
            elementwise = {
                key: getattr(torch, some.dtype)
                for key, some in facts.items()
                if some.shape == extent.shape and some.shape
            }
            on_host = self.manifest.plain.get("on_host", [])
            others = {
                key: _allocate(some, torch.device("cpu") if key in on_host else state.layout.device)
                for key, some in facts.items()
                if key not in elementwise
            }
            room = state.shards.allocate_state(piece, elementwise, others, plain.get(extent.name, {}))
            for key, into in room.items():
                cut = (piece.start, piece.stop) if key in elementwise else (0, facts[key].elements)
                yield ReadRequest(f"{STATE}{extent.name}.{key}", *cut, into)


def _flatten(dense: torch.Tensor) -> torch.Tensor:
    """Return all elements of a dense tensor, 1-D, in memory order."""
    return dense.as_strided((dense.numel(),), (1,), dense.storage_offset())


def _allocate(facts: TensorFacts, device: torch.device) -> torch.Tensor:
    dtype = getattr(torch, facts.dtype)
    return torch.empty_strided(facts.shape, facts.stride, dtype=dtype, device=device)


class _ReplicatedFields(msgspec.Struct, frozen=True):
    """The fields of the replicated state that this module needs before `TrainingState` checks all fields."""

    groups: tuple[dict[str, Any], ...]
    untrained: dict[str, Any]


def read_replicated_state(manifest: Manifest) -> dict[str, Any]:
    """Return the replicated state of a checkpoint, as `ReplicatedState.describe` returned it.

    Raises:
        Damaged: the manifest lacks it.
    """
    try:
        # A text inside the JSON: the best value of a plateau schedule may be infinite, which JSON lacks.
        rest = decode_object(manifest.plain["rest"])
        msgspec.convert(rest, _ReplicatedFields)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        why = f"the rest of the state cannot be read: {escape_line(str(error))}"
        raise Damaged(manifest.name, (FileDamage(MANIFEST, why),)) from error
    return rest
