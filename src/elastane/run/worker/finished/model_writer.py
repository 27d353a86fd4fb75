"""The writer of the finished model, which is one set of files in the run directory."""

from collections.abc import Callable
from functools import partial
from typing import BinaryIO

import torch
from torch import nn

from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec
from elastane.run.worker.finished.adapters import ADAPTER_WEIGHTS, describe_adapter
from elastane.run.worker.finished.environment import encode_environment
from elastane.run.worker.finished.file_set import WriteFile, replace_file_set
from elastane.run.worker.finished.named_tensors import (
    MemoryTensors,
    RenamedTensors,
    require_tensors,
    strip_compiled,
)
from elastane.run.worker.finished.optimizer_state import OptimizerState, encode_groups, read_optimizer_state
from elastane.run.worker.finished.safetensors_files import (
    check_types,
    list_replaced_files,
    plan_model_files,
    write_model_file,
    write_tensors,
)
from elastane.run.worker.finished.text_files import (
    PROBLEM,
    TEXTS,
    TOKENIZER_FILES,
    read_model_texts,
    read_tokenizer_texts,
)
from elastane.run.worker.state.training_state import TrainingState


def write_finished(state: TrainingState, files: RunDir, spec: RunSpec) -> dict[str, WrittenFile]:
    """Write the model and the files beside it; equal states give equal bytes.

    Returns:
        The size and checksum of every file of the set.

    Raises:
        BadInput: a safetensors file cannot hold a part of the state.
        OSError: the files cannot be written; an earlier set is unchanged.
    """
    weights = _collect_weights(state.model, state.gather_tensor)
    adapter = describe_adapter(state.model)
    metadata = {PROBLEM: adapter.problem} if adapter is not None and adapter.problem else {}
    model, marker = plan_model_files(weights, spec.max_shard_bytes, metadata)
    writes: dict[str, WriteFile] = dict(model)
    if spec.save_optimizer:
        writes[files.model_files.optimizer.name] = partial(write_optimizer, read_optimizer_state(state))
    if adapter is not None and adapter.names:
        saved = RenamedTensors(weights, adapter.names, tied=False)
        writes[ADAPTER_WEIGHTS] = partial(write_model_file, saved, saved.descriptions, metadata={})
    texts = {
        **read_model_texts(state.model, adapter),
        **read_tokenizer_texts(state.tokenizer),
        files.model_files.environment.name: encode_environment(),
    }
    texts[files.model_files.optimizer_groups.name] = encode_groups(state)
    writes |= {name: partial(_write_text, text) for name, text in texts.items()}
    return replace_file_set(
        files.root,
        writes,
        marker=marker,
        replaced=[
            *list_replaced_files(path.name for path in files.root.iterdir()),
            files.model_files.optimizer.name,
            *TEXTS,
            *TOKENIZER_FILES,
            ADAPTER_WEIGHTS,
        ],
    )


def check_writable(model: nn.Module) -> None:
    """Check before the training that the model can be written after it.

    Raises:
        BadInput: a safetensors file cannot hold a part of the model.
    """
    weights = _collect_weights(model)
    check_types(weights, weights.descriptions)


def _collect_weights(
    model: nn.Module, gather: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> MemoryTensors:
    # The parameters themselves: ``gather`` knows which of them is divided.
    state = model.state_dict() if gather is None else model.state_dict(keep_vars=True)
    entries = require_tensors(state)
    if gather is not None:
        entries = {name: gather(tensor) for name, tensor in entries.items()}
    return MemoryTensors({strip_compiled(name): tensor for name, tensor in entries.items()})


def write_optimizer(optimizer: OptimizerState, file: BinaryIO) -> None:
    """Write ``optimizer.safetensors``; entries other than tensors go into its metadata."""
    write_tensors(file, optimizer.tensors, optimizer.tensors.descriptions, optimizer.build_metadata())


def _write_text(text: bytes, file: BinaryIO) -> None:
    file.write(text)
