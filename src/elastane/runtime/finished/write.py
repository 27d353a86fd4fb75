"""Writing the finished model into the run directory, once, as one set of files."""

from functools import partial
from typing import BinaryIO

from torch import nn

from elastane.api.checkpoints import Written
from elastane.api.rundir import RunDir
from elastane.api.spec import RunSpec
from elastane.runtime.finished.adapters import ADAPTER_WEIGHTS, adapter_of
from elastane.runtime.finished.environment import environment_json
from elastane.runtime.finished.file_set import Write, publish
from elastane.runtime.finished.model_texts import PROBLEM, TEXTS, texts_of
from elastane.runtime.finished.named_tensors import InMemory, Renamed, only_tensors, plain_name
from elastane.runtime.finished.optimizer import OptimizerState, from_training, groups_json
from elastane.runtime.finished.shards import model_files, outdated, write_model_file
from elastane.runtime.finished.tensor_file import check_types, write_tensors
from elastane.runtime.state.state import TrainingState


def write_finished(state: TrainingState, files: RunDir, spec: RunSpec) -> dict[str, Written]:
    """Write the model and what belongs to it; equal states give equal bytes.

    Args:
        state: after the last step.
        files: of the run.
        spec: how it is to be written.

    Returns:
        Size and checksum of every file of the set.

    Raises:
        BadInput: something in the state has no place in a safetensors file.
        OSError: the files could not be written; an earlier set is as it was.
    """
    weights = _weights(state.model)
    adapter = adapter_of(state.model)
    metadata = {PROBLEM: adapter.problem} if adapter is not None and adapter.problem else {}
    model, marker = model_files(weights, spec.max_shard_bytes, metadata)
    writes: dict[str, Write] = dict(model)
    if spec.save_optimizer:
        writes[files.optimizer.name] = partial(write_optimizer, from_training(state))
    if adapter is not None and adapter.names:
        saved = Renamed(weights, adapter.names, tied=False)
        writes[ADAPTER_WEIGHTS] = partial(write_model_file, saved, saved.described, metadata={})
    texts = {**texts_of(state.model, adapter), files.environment.name: environment_json()}
    texts[files.optimizer_groups.name] = groups_json(state)
    writes |= {name: partial(_write_text, text) for name, text in texts.items()}
    return publish(
        files.root,
        writes,
        marker=marker,
        replaced=[
            *outdated(path.name for path in files.root.iterdir()),
            files.optimizer.name,
            *TEXTS,
            ADAPTER_WEIGHTS,
        ],
    )


def check_writable(model: nn.Module) -> None:
    """Find out before the training what would otherwise be found out after it.

    Raises:
        BadInput: something in the model has no place in a safetensors file.
    """
    weights = _weights(model)
    check_types(weights, weights.described)


def _weights(model: nn.Module) -> InMemory:
    entries = only_tensors(model.state_dict(), "the model")
    return InMemory({plain_name(name): tensor for name, tensor in entries.items()})


def write_optimizer(optimizer: OptimizerState, file: BinaryIO) -> None:
    """``optimizer.safetensors``; what is no tensor goes into its metadata."""
    write_tensors(file, optimizer.tensors, optimizer.tensors.described, optimizer.metadata())


def _write_text(text: bytes, file: BinaryIO) -> None:
    file.write(text)
