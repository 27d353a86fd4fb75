"""A checkpoint as something to export: tensors by name, read and checked when they are asked for."""

from collections.abc import Mapping

import torch

from elastane.api.checkpoints import Manifest, TensorFacts
from elastane.runtime.checkpoints.contents import MODEL, STATE, rest_of
from elastane.runtime.checkpoints.outline import Outline, read_outline
from elastane.runtime.checkpoints.reader import Reader
from elastane.runtime.finished.formats import Trained
from elastane.runtime.finished.named_tensors import Described, Renamed, plain_name
from elastane.runtime.finished.optimizer import PREFIX, OptimizerState


def trained_in(reader: Reader, manifest: Manifest, *, max_shard_bytes: int, optimizer: bool) -> Trained:
    """What a checkpoint holds.

    Args:
        reader: of the checkpoint, open for as long as the result is used.
        manifest: likewise.
        max_shard_bytes: of weights in one safetensors file.
        optimizer: with the state of its optimizer.

    Raises:
        BadInput: another program wrote it.
    """
    outline = read_outline(manifest)
    model = _Kept(reader, _keys(manifest, outline), _aliases(manifest))
    return Trained(
        model=model,
        max_shard_bytes=max_shard_bytes,
        optimizer=_optimizer(reader, manifest, outline) if optimizer else None,
        texts={name: text.encode() for name, text in outline.texts.items()},
        adapter=Renamed(model, outline.adapter, tied=False) if outline.adapter else None,
        adapter_problem=outline.adapter_problem,
    )


class _Kept:
    """`NamedTensors` of a checkpoint."""

    def __init__(
        self, reader: Reader, keys: Mapping[str, tuple[str, TensorFacts]], aliases: Mapping[str, str]
    ) -> None:
        self._reader, self._keys, self.aliases = reader, keys, aliases
        self.described = {
            name: Described(getattr(torch, facts.dtype), facts.shape) for name, (_, facts) in keys.items()
        }

    def tensor(self, name: str) -> torch.Tensor:
        key, facts = self._keys[name]
        flat = torch.empty(facts.elements, dtype=getattr(torch, facts.dtype))
        self._reader.read(key, 0, facts.elements, flat)
        return flat.as_strided(facts.shape, facts.stride)


def _keys(manifest: Manifest, outline: Outline) -> dict[str, tuple[str, TensorFacts]]:
    facts = manifest.tensors
    return {plain_name(name): (key, facts[key]) for name in outline.names if (key := MODEL + name) in facts}


def _aliases(manifest: Manifest) -> dict[str, str]:
    return {
        plain_name(name.removeprefix(MODEL)): plain_name(first.removeprefix(MODEL))
        for name, first in manifest.aliases.items()
        if name.startswith(MODEL)
    }


def _optimizer(reader: Reader, manifest: Manifest, outline: Outline) -> OptimizerState:
    groups = rest_of(manifest)["groups"]
    keys = {
        PREFIX + plain_name(key.removeprefix(STATE)): (key, facts)
        for key, facts in manifest.tensors.items()
        if key.startswith(STATE)
    }
    return OptimizerState(
        tensors=_Kept(reader, keys, {}),
        groups=tuple(
            {
                **{key: value for key, value in group.items() if key != "param_names"},
                "params": [*map(plain_name, names)],
            }
            for group, names in zip(groups, outline.groups, strict=True)
        ),
        plain={
            f"{PREFIX}{plain_name(name)}.{key}": value
            for name, some in manifest.plain.get("scalars", {}).items()
            for key, value in some.items()
        },
        kind=outline.optimizer,
    )
