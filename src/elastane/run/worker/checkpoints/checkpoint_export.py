"""A checkpoint as the source of an export; it reads and verifies tensors by name, on demand."""

from collections.abc import Mapping

import torch

from elastane.run.nouns.checkpoints import Manifest, TensorFacts
from elastane.run.worker.checkpoints.model_description import ModelDescription, read_model_description
from elastane.run.worker.checkpoints.reader import CheckpointReader
from elastane.run.worker.checkpoints.state_reader import read_replicated_state
from elastane.run.worker.checkpoints.tensor_keys import MODEL, OPTIMIZER_STATE
from elastane.run.worker.finished.formats import TrainedModel
from elastane.run.worker.finished.named_tensors import RenamedTensors, TensorDescription, strip_compiled
from elastane.run.worker.finished.optimizer_state import PREFIX, OptimizerState
from elastane.run.worker.finished.text_files import TEXTS, TOKENIZER_FILES


def read_trained_model(
    reader: CheckpointReader, manifest: Manifest, *, max_shard_bytes: int, optimizer: bool
) -> TrainedModel:
    """Return the trained model of a checkpoint.

    Args:
        reader: the reader of the checkpoint, which must stay open while the result is in use.
        max_shard_bytes: the limit of weights, in bytes, in one safetensors file.
        optimizer: include the state of the optimizer.

    Raises:
        BadInput: another program wrote the checkpoint.
    """
    description = read_model_description(manifest)
    model = _CheckpointTensors(reader, _map_keys(manifest, description), _map_aliases(manifest))
    return TrainedModel(
        model=model,
        max_shard_bytes=max_shard_bytes,
        optimizer=_read_optimizer(reader, manifest, description) if optimizer else None,
        # No other name of a manifest becomes that of a file.
        texts={
            name: text.encode()
            for name, text in description.texts.items()
            if name in {*TEXTS, *TOKENIZER_FILES}
        },
        adapter=RenamedTensors(model, description.adapter, tied=False) if description.adapter else None,
        adapter_problem=description.adapter_problem,
    )


class _CheckpointTensors:
    """`NamedTensors` of a checkpoint."""

    def __init__(
        self,
        reader: CheckpointReader,
        keys: Mapping[str, tuple[str, TensorFacts]],
        aliases: Mapping[str, str],
    ) -> None:
        self._reader, self._keys, self.aliases = reader, keys, aliases
        self.descriptions = {
            name: TensorDescription(getattr(torch, facts.dtype), facts.shape)
            for name, (_, facts) in keys.items()
        }

    def read_tensor(self, name: str) -> torch.Tensor:
        key, facts = self._keys[name]
        flat = torch.empty(facts.elements, dtype=getattr(torch, facts.dtype))
        self._reader.read(key, 0, facts.elements, flat)
        return flat.as_strided(facts.shape, facts.stride)


def _map_keys(manifest: Manifest, description: ModelDescription) -> dict[str, tuple[str, TensorFacts]]:
    facts = manifest.tensors
    return {
        strip_compiled(name): (key, facts[key])
        for name in description.names
        if (key := MODEL + name) in facts
    }


def _map_aliases(manifest: Manifest) -> dict[str, str]:
    return {
        strip_compiled(name.removeprefix(MODEL)): strip_compiled(first.removeprefix(MODEL))
        for name, first in manifest.aliases.items()
        if name.startswith(MODEL)
    }


def _read_optimizer(
    reader: CheckpointReader, manifest: Manifest, description: ModelDescription
) -> OptimizerState:
    groups = read_replicated_state(manifest)["groups"]
    keys = {
        PREFIX + strip_compiled(key.removeprefix(OPTIMIZER_STATE)): (key, facts)
        for key, facts in manifest.tensors.items()
        if key.startswith(OPTIMIZER_STATE)
    }
    return OptimizerState(
        tensors=_CheckpointTensors(reader, keys, {}),
        groups=tuple(
            {
                **{key: value for key, value in group.items() if key != "param_names"},
                "params": [*map(strip_compiled, names)],
            }
            for group, names in zip(groups, description.groups, strict=True)
        ),
        plain={
            f"{PREFIX}{strip_compiled(name)}.{key}": value
            for name, entries in manifest.plain.get("scalars", {}).items()
            for key, value in entries.items()
        },
        kind=description.optimizer,
    )
