"""Small checkpoints of flat tensors, with several writers."""

from collections.abc import Sequence
from itertools import pairwise

import torch

from elastane.run.checkpoints.catalog import Catalog
from elastane.run.nouns.checkpoints import Manifest, format_checkpoint_name, format_part_name
from elastane.run.worker.checkpoints.part_encoding import EncodedPart, TensorSlice
from elastane.run.worker.checkpoints.publisher import publish_checkpoint


def save(
    catalog: Catalog,
    step: int,
    model: dict[str, torch.Tensor],
    *,
    writers: int = 3,
    borders: Sequence[int] = (5, 17, 40),
    metrics: dict[str, float] | None = None,
) -> Manifest:
    """Write and publish a checkpoint of 1-D tensors and one plain value."""
    name = format_checkpoint_name(step)
    entries = []
    for key, tensor in model.items():
        cuts = sorted({0, tensor.numel(), *(border for border in borders if border < tensor.numel())})
        entries += [
            TensorSlice(f"model.{key}", tuple(tensor.shape), (1,), start, stop, tensor[start:stop])
            for start, stop in pairwise(cuts)
        ]
    parts = []
    for worker in range(writers):
        encoded = EncodedPart(format_part_name(worker), entries[worker::writers])
        parts.append(encoded.describe(catalog.write(name, encoded.name, encoded)))
    manifest = Manifest(
        name=name, step=step, created="2026-01-01T00:00:00Z", parts=tuple(parts), metrics=metrics or {}
    )
    return publish_checkpoint(catalog, manifest, {("optimizer", "param_groups", 0, "lr"): 0.1})
