"""The reading of a worker's training state from a checkpoint."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import torch

from elastane.common.errors import BadInput, Damaged, FileDamage
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import decode_object
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.nouns.checkpoints import MANIFEST, Manifest, TensorFacts
from elastane.run.protocol.messages import BEGINNING, RoundOutcome
from elastane.run.worker.checkpoints.reader import CheckpointReader, ReadRequest
from elastane.run.worker.checkpoints.tensor_keys import EXTRA, MODEL, OPTIMIZER_STATE, build_value_key
from elastane.run.worker.state.model_layout import WIDENED, Extent
from elastane.run.worker.state.replicated_state import UNTRAINED
from elastane.run.worker.state.tensor_bytes import flatten_dense
from elastane.run.worker.state.training_state import TrainingState

SAME_MODEL = "build the model that was saved; to use its weights in another one: elastane checkpoint export"


class StateReader:
    """Reads units of a worker's state from a checkpoint.

    Raises:
        BadInput: the checkpoint belongs to another model.
    """

    def __init__(self, reader: CheckpointReader, manifest: Manifest) -> None:
        self._reader = reader
        self.manifest = manifest
        self._facts = manifest.tensors
        self._arrivals: list[tuple[torch.Tensor, torch.Tensor]] = []
        # The keys of each parameter's optimizer state.
        self._entries: dict[str, list[str]] = {}
        for key in self._facts:
            if key.startswith(OPTIMIZER_STATE):
                name, _, entry = key.removeprefix(OPTIMIZER_STATE).rpartition(".")
                self._entries.setdefault(name, []).append(entry)

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
                requests += [
                    ReadRequest(keys[name], 0, t.numel(), flatten_dense(t)) for name, t in extra.items()
                ]
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

    def check_names(self, state: TrainingState) -> None:
        """Refuse a model that lacks tensors of the checkpoint: their state would be lost in silence.

        Raises:
            BadInput: the checkpoint belongs to another model.
        """
        layout = state.layout
        known = {extent.name for extent in (*layout.extents, *layout.buffer_extents)}
        changed = read_replicated_state(self.manifest)["untrained"]
        saved = {key.removeprefix(MODEL) for key in self._facts if key.startswith(MODEL)}
        lacking = saved - known - changed.keys()
        # Frozen parameters and constant buffers are saved too, for foreign readers.
        if lacking and (lacking := lacking.difference(state.list_names())):
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise BadInput(
                f"checkpoint {self.manifest.name} does not fit the model, which has no {min(lacking)}{more}",
                means="the script builds another model than the saved one",
                do=SAME_MODEL,
            )

    def _find_replicated_keys(self) -> dict[str, str]:
        """Return the tensors of the replicated state, with their keys in the checkpoint."""
        extra = {key.removeprefix(EXTRA): key for key in self._facts if key.startswith(EXTRA)}
        changed = read_replicated_state(self.manifest)["untrained"]
        return {f"{UNTRAINED}.{name}": MODEL + name for name in changed} | extra

    def _redirect_to_host(self, requests: Iterable[ReadRequest]) -> Iterator[ReadRequest]:
        """Yield the requests, with host memory in place of memory of a device or of a wider type."""
        for request in requests:
            dtype = getattr(torch, self._facts[request.key].dtype)
            is_narrower = WIDENED.get(dtype) == request.into.dtype
            if request.into.device.type == "cpu" and not is_narrower:
                yield request
            else:
                host_dtype = dtype if is_narrower else request.into.dtype
                host = torch.empty_like(request.into, device="cpu", dtype=host_dtype)
                self._arrivals.append((request.into, host))
                yield msgspec.structs.replace(request, into=host)

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
        key = build_value_key(extent.name)
        self._check(key, extent)
        return ReadRequest(key, start, stop, into, extent.box)

    def _check(self, key: str, extent: Extent) -> None:
        facts, whole = self._facts.get(key), extent.whole
        if facts is None or facts.shape != whole.shape or facts.stride != whole.stride:
            stored = "absent" if facts is None else f"{facts.shape} with strides {facts.stride}"
            raise BadInput(
                f"checkpoint {self.manifest.name} does not fit the model: {extent.name} is "
                f"{whole.shape} with strides {whole.stride} in the model and {stored} in the checkpoint",
                means="the script builds another model than the saved one",
                do=SAME_MODEL,
            )

    def _request_states(self, state: TrainingState, unit: int) -> Iterator[ReadRequest]:
        plain: Mapping[str, dict[str, Any]] = self.manifest.plain.get("scalars", {})
        for extent, piece in state.shards.list_pieces(unit):
            facts = {
                key: self._facts[f"{OPTIMIZER_STATE}{extent.name}.{key}"]
                for key in self._entries.get(extent.name, [])
            }
            if not facts and extent.name not in plain:
                continue  # a buffer, or a parameter that has had no gradient yet
            elementwise = {
                key: getattr(torch, entry.dtype)
                for key, entry in facts.items()
                if entry.shape == extent.whole.shape and entry.shape
            }
            on_host = self.manifest.plain.get("on_host", [])
            others = {
                key: _allocate(entry, torch.device("cpu") if key in on_host else state.layout.device)
                for key, entry in facts.items()
                if key not in elementwise
            }
            memory = state.shards.allocate_state(piece, elementwise, others, plain.get(extent.name, {}))
            for entry, into in memory.items():
                key = f"{OPTIMIZER_STATE}{extent.name}.{entry}"
                if entry in elementwise:
                    yield ReadRequest(key, piece.start, piece.stop, into, extent.box)
                else:
                    yield ReadRequest(key, 0, facts[entry].elements, into)


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
        described = decode_object(manifest.plain["rest"])
        msgspec.convert(described, _ReplicatedFields)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        why = f"the replicated state cannot be read: {escape_line(str(error))}"
        raise Damaged(manifest.name, (FileDamage(MANIFEST, why),)) from error
    return described


# -- the checkpoint with which an attempt of the run begins ----------------------------------------------


class StartingCheckpoint:
    """The checkpoint at the start; it loads the manifest first, and the state with the first generation.

    Args:
        state: the training state to restore.
        report_restored: called with the bytes and the seconds of the restore.

    Attributes:
        outcome: the checkpoint as the outcome of round 0.
        ending: why the script ended the run at this checkpoint; empty if training goes on.

    Raises:
        StorageError: the manifest cannot be read.
    """

    def __init__(
        self, catalog: Catalog, name: str, state: TrainingState, report_restored: Callable[[int, float], None]
    ) -> None:
        self._catalog, self._state, self._report_restored = catalog, state, report_restored
        self._manifest = catalog.load_manifest(name)
        self.outcome: RoundOutcome = msgspec.structs.replace(
            BEGINNING,
            step=self._manifest.step,
            cursors={int(rank): text for rank, text in self._manifest.plain.get("cursors", {}).items()},
        )
        self.ending: str = self._manifest.plain.get("ending", "")
        with CheckpointReader(catalog.storage, self._manifest) as reader:
            StateReader(reader, self._manifest).check_names(state)

    def restore(self, values: tuple[int, ...], states: tuple[int, ...]) -> None:
        """Restore units in place; see `StateReader.restore`."""
        start_s = time.perf_counter()
        with CheckpointReader(self._catalog.storage, self._manifest) as reader:
            nbytes = StateReader(reader, self._manifest).restore(self._state, values, states)
        self._report_restored(nbytes, time.perf_counter() - start_s)
