"""From the parts of all writers to a checkpoint that exists."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from elastane.api.checkpoints import METADATA, PLAIN, Manifest, PartFile
from elastane.runtime.checkpoints.dcp_metadata import Path, encode_metadata, encode_values
from elastane.storage.catalog import Catalog


def publish_checkpoint(
    catalog: Catalog,
    manifest: Manifest,
    plain: Mapping[Path, Any] | None = None,
) -> Manifest:
    """Write what foreign readers need, then manifest and marker.

    Args:
        catalog: of the run.
        manifest: with the parts of the writers, and nothing yet of the files written here.
        plain: values for foreign readers that are no tensors, by place in the nested state dict.

    Returns:
        The manifest as published; if another publisher had already published these parts, its manifest.

    Raises:
        BadInput: elements are missing; the checkpoint was not published.
        StorageError: something could not be written; the checkpoint was not published.
    """
    there = catalog.inspect(manifest.name).manifest
    # A publisher that takes over from a dead one must not open what the dead one had finished.
    if there is not None and there.parts[: len(manifest.parts)] == manifest.parts:
        return there
    buffers, items = encode_values(plain or {})
    others = []
    if items:
        written = catalog.write(manifest.name, PLAIN, buffers)
        others.append(PartFile(name=PLAIN, bytes=written.bytes, checksum=written.checksum))
    text = encode_metadata(_select_tensor_parts(manifest), items, manifest.aliases)
    written = catalog.write(manifest.name, METADATA, [text])
    others.append(PartFile(name=METADATA, bytes=written.bytes, checksum=written.checksum))
    whole = msgspec.structs.replace(manifest, parts=(*manifest.parts, *others))
    catalog.publish(whole)
    return whole


def _select_tensor_parts(manifest: Manifest) -> Sequence[PartFile]:
    return [part for part in manifest.parts if part.items]
