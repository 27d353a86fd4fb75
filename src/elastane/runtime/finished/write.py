"""Writing the finished model into the run directory, once, as one set of files."""

from functools import partial
from typing import BinaryIO

from torch import nn

from elastane.api.checkpoints import Written
from elastane.api.rundir import RunDir
from elastane.api.spec import RunSpec
from elastane.runtime.finished.configs import CONFIG, GENERATION, configs_of
from elastane.runtime.finished.environment import environment_json
from elastane.runtime.finished.file_set import Write, publish
from elastane.runtime.finished.named_tensors import InMemory, only_tensors
from elastane.runtime.finished.optimizer import OptimizerState, from_training
from elastane.runtime.finished.shards import model_files, outdated
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
    model, marker = model_files(_weights(state.model), spec.max_shard_bytes)
    writes: dict[str, Write] = dict(model)
    if spec.save_optimizer:
        writes[files.optimizer.name] = partial(write_optimizer, from_training(state))
    texts = configs_of(state.model) | {files.environment.name: environment_json()}
    writes |= {name: partial(_write_text, text) for name, text in texts.items()}
    return publish(
        files.root,
        writes,
        marker=marker,
        replaced=[
            *outdated(path.name for path in files.root.iterdir()),
            files.optimizer.name,
            CONFIG,
            GENERATION,
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
    return InMemory(only_tensors(model.state_dict(), "the model"))


def write_optimizer(optimizer: OptimizerState, file: BinaryIO) -> None:
    """``optimizer.safetensors``; what is no tensor goes into its metadata."""
    write_tensors(file, optimizer.tensors, optimizer.tensors.described, optimizer.metadata())


def _write_text(text: bytes, file: BinaryIO) -> None:
    file.write(text)
