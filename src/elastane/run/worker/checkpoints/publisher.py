"""The publication of a checkpoint, after all its parts are written; before that it does not exist."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from elastane.common.errors import Damaged, ElastaneError, FileDamage, StorageError
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.checkpoints.catalog import LARGEST_MANIFEST_BYTES, Catalog
from elastane.run.nouns.checkpoints import METADATA, PLAIN, Manifest, PartFile, Retention
from elastane.run.nouns.control import CheckpointKept, PublishCheckpoint
from elastane.run.worker.checkpoints.dcp_metadata import KeyPath, encode_metadata, encode_values
from elastane.run.worker.checkpoints.model_description import KEY, describe_model
from elastane.run.worker.checkpoints.part_records import PartRecord, name_record
from elastane.run.worker.checkpoints.tensor_keys import MODEL
from elastane.run.worker.finished.adapters import describe_adapter
from elastane.run.worker.finished.text_files import read_tokenizer_texts
from elastane.run.worker.state.model_layout import ModelLayout
from elastane.run.worker.state.training_state import TrainingState

_decode_record = Decoder[PartRecord](PartRecord, at_most_bytes=LARGEST_MANIFEST_BYTES)


class CheckpointPublisher:
    """Publishes checkpoints, and deletes those beyond the retention.

    Args:
        resumed: the number of times that the run has been resumed.
        measure_age_s: returns the age of this worker's copy of a checkpoint.
        processes: of each worker, each of which has written a file.
    """

    def __init__(
        self,
        worker: int,
        state: TrainingState,
        catalog: Catalog,
        *,
        resumed: int,
        retention: Retention,
        measure_age_s: Callable[[str], float],
        report: Callable[[CheckpointKept], None],
        processes: int = 1,
    ) -> None:
        self._worker, self._state, self._catalog = worker, state, catalog
        self._processes = processes
        # Described here, because publication runs beside the training.
        self._adapter = describe_adapter(state.model)
        self._tokenizer = read_tokenizer_texts(state.tokenizer)
        self._resumed, self._retention = resumed, retention
        self._measure_age_s, self._report = measure_age_s, report

    def publish(self, order: PublishCheckpoint) -> None:
        """Publish a checkpoint and report it, or report why that failed."""
        result = CheckpointKept(worker=self._worker, name=order.name, step=order.step)
        try:
            # An earlier publisher may have died after its work and before its report.
            manifest = self._catalog.find_published(order.name) or self._publish(order)
        except ElastaneError as error:
            self._report(msgspec.structs.replace(result, error=error.what))
            return
        self._report(msgspec.structs.replace(result, bytes=manifest.bytes, metrics=manifest.metrics))
        try:
            self._catalog.delete_leftovers(manifest)
            self._catalog.prune(self._retention, trusted=frozenset({order.name}))
        except StorageError:
            # Remaining files cost space, not correctness; the next publication deletes them.
            return

    def _publish(self, order: PublishCheckpoint) -> Manifest:
        records = [
            self._read_record(order.name, name_record(writer, process))
            for writer in order.writers
            for process in range(self._processes)
        ]
        scalars = {name: values for record in records for name, values in record.scalars.items()}
        plain = records[0].plain
        manifest = Manifest(
            name=order.name,
            step=order.step,
            resumed=self._resumed,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            parts=tuple(record.part for record in records),
            aliases={MODEL + name: MODEL + first for name, first in self._state.find_aliases().items()},
            metrics=records[0].metrics,
            seconds=self._measure_age_s(order.name),
            plain={
                **plain,
                "scalars": scalars,
                KEY: msgspec.to_builtins(describe_model(self._state, self._adapter, self._tokenizer)),
            },
        )
        groups = json.loads(plain["rest"])["groups"]
        return publish_checkpoint(
            self._catalog, manifest, list_foreign_values(self._state.layout, groups, scalars)
        )

    def _read_record(self, name: str, file: str) -> PartRecord:
        try:
            return _decode_record(self._catalog.read(name, file))
        except Malformed as error:
            raise Damaged(name, (FileDamage(file, str(error)),)) from error


def list_foreign_values(
    layout: ModelLayout, groups: Sequence[dict[str, Any]], scalars: Mapping[str, dict[str, Any]]
) -> dict[KeyPath, Any]:
    """Return hyperparameters and scalars, by the names that ``get_optimizer_state_dict`` gives them.

    Args:
        scalars: the plain values of optimizer state, by parameter.
    """
    values: dict[KeyPath, Any] = {}
    for number, group in enumerate(groups):
        path = ("optimizer", "param_groups", number)
        values |= {(*path, key): value for key, value in group.items()}
        values[*path, "params"] = [
            extent.name
            for extent, own_group in zip(layout.extents, layout.groups, strict=True)
            if own_group == number
        ]
    for name, entries in scalars.items():
        values |= {("optimizer", "state", name, key): value for key, value in entries.items()}
    return values


def publish_checkpoint(
    catalog: Catalog, manifest: Manifest, values: Mapping[KeyPath, Any] | None = None
) -> Manifest:
    """Write the files for foreign readers, then the manifest and the marker.

    Args:
        manifest: the manifest with the parts of the writers, without the files that this function writes.
        values: plain values for foreign readers, by path in the nested state dict.

    Returns:
        The published manifest.

    Raises:
        BadInput: elements are missing, so the checkpoint was not published.
        StorageError: a write failed, so the checkpoint was not published.
    """
    buffers, items = encode_values(values or {})
    foreign_files = []
    if items:
        written = catalog.write(manifest.name, PLAIN, buffers)
        foreign_files.append(PartFile(name=PLAIN, bytes=written.bytes, checksum=written.checksum))
    tensor_parts = [part for part in manifest.parts if part.items]
    written = catalog.write(manifest.name, METADATA, [encode_metadata(tensor_parts, items, manifest.aliases)])
    foreign_files.append(PartFile(name=METADATA, bytes=written.bytes, checksum=written.checksum))
    complete = msgspec.structs.replace(manifest, parts=(*manifest.parts, *foreign_files))
    catalog.publish(complete)
    return complete
