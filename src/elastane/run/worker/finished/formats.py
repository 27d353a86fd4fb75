"""The export formats of a finished model: transformers, plain PyTorch, distributed checkpoint."""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint

from elastane.common.errors import BadInput
from elastane.run.worker.finished.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, BASE_CONFIG, map_base_names
from elastane.run.worker.finished.configs import CONFIG, GENERATION
from elastane.run.worker.finished.file_set import WriteFile
from elastane.run.worker.finished.named_tensors import (
    MemoryTensors,
    NamedTensors,
    RenamedTensors,
    list_names,
    read_state_dict,
)
from elastane.run.worker.finished.optimizer_state import OptimizerState
from elastane.run.worker.finished.safetensors_files import plan_model_files, write_model_file

NO_WEIGHTS = MemoryTensors({})
"""The weights of a folder that holds only an adapter."""


@dataclass(frozen=True)
class TrainedModel:
    """The source of an export.

    Args:
        model: the weights.
        optimizer: the state of the optimizer; None: do not export it.
        texts: the files from which other libraries build the model, by name; see `text_files`.
        max_shard_bytes: the limit of weights, in bytes, in one safetensors file.
        adapter: the tensors that ``peft`` saves for a model with an adapter, by its own keys.
        adapter_problem: why ``adapter`` is empty although the model has an adapter.
    """

    model: NamedTensors
    max_shard_bytes: int
    optimizer: OptimizerState | None = None
    texts: Mapping[str, bytes] = field(default_factory=dict)
    adapter: NamedTensors | None = None
    adapter_problem: str = ""


def select_exported(trained: TrainedModel) -> TrainedModel:
    """Return the part of a trained model that a folder of ``transformers`` or ``peft`` holds.

    Such a folder has the model or an adapter. It has an adapter and its base model if the adapter does not
    name a base model that others can load.

    Raises:
        BadInput: neither library can load the model.
    """
    texts = {name: text for name, text in trained.texts.items() if name != BASE_CONFIG}
    base_config = trained.texts.get(BASE_CONFIG)
    if trained.adapter is None and base_config is None:
        _check_is_of_transformers(trained)
        return trained
    base = RenamedTensors(trained.model, map_base_names(list_names(trained.model)))
    if trained.adapter is None:
        if not set(list_names(trained.model)) == {*map_base_names(list_names(trained.model)).values()}:
            raise _build_adapter_error(trained)
        return replace(trained, model=base, texts=texts | {CONFIG: base_config or b""})
    if json.loads(texts[ADAPTER_CONFIG]).get("base_model_name_or_path") or base_config is None:
        texts.pop(GENERATION, None)
        return replace(trained, model=NO_WEIGHTS, texts=texts)
    return replace(trained, model=base, texts=texts | {CONFIG: base_config})


def _check_is_of_transformers(trained: TrainedModel) -> None:
    if trained.adapter_problem:
        raise _build_adapter_error(trained)
    if CONFIG not in trained.texts:
        raise BadInput(
            "the model has no config.json",
            means="the module of run.prepare is not a model of transformers, or contains one, so "
            "from_pretrained could not build it",
            do="pass the model of transformers itself to run.prepare; or use --format torch or dcp",
        )


def _build_adapter_error(trained: TrainedModel) -> BadInput:
    return BadInput(
        "the adapter of this model cannot be exported on its own",
        means=f"{trained.adapter_problem or 'its tensors are not where peft puts them'}; "
        "without the adapter, from_pretrained would not load the trained model",
        do="use --format torch or dcp, which hold every tensor under its name in the model",
    )


def write_hf(trained: TrainedModel, folder: Path) -> None:
    """Write the files that ``from_pretrained`` of ``transformers`` or ``peft`` loads, and ``optimizer.pt``.

    Raises:
        BadInput: neither library can load the model.
    """
    exported = select_exported(trained)
    files: dict[str, WriteFile] = {}
    if exported.model.descriptions or exported.adapter is None:
        files, _ = plan_model_files(exported.model, exported.max_shard_bytes)
    if exported.adapter is not None:
        adapter = exported.adapter
        files[ADAPTER_WEIGHTS] = partial(write_model_file, adapter, adapter.descriptions, metadata={})
    for name, write in files.items():
        with (folder / name).open("wb") as file:
            write(file)
    for name, text in exported.texts.items():
        (folder / name).write_bytes(text)
    _save_optimizer(exported, folder)


def write_torch(trained: TrainedModel, folder: Path) -> None:
    """Write ``model.pt`` and ``optimizer.pt``: state dicts for ``torch.load`` with weights only."""
    torch.save(read_state_dict(trained.model), folder / "model.pt")
    _save_optimizer(trained, folder)


def write_dcp(trained: TrainedModel, folder: Path) -> None:
    """Write a distributed checkpoint of ``{"model": ..., "optimizer": ...}``, the optimizer flattened."""
    state: dict[str, Any] = {"model": read_state_dict(trained.model)}
    if trained.optimizer is not None:
        state["optimizer"] = trained.optimizer.build_flat_state()
    with warnings.catch_warnings():
        # Torch warns that one process saves, which is the intention here.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save_checkpoint(state, checkpoint_id=folder, no_dist=True)


FORMATS: dict[str, Callable[[TrainedModel, Path], None]] = {
    "hf": write_hf,
    "dcp": write_dcp,
    "torch": write_torch,
}


def _save_optimizer(trained: TrainedModel, folder: Path) -> None:
    if trained.optimizer is not None:
        torch.save(trained.optimizer.build_torch_state(), folder / "optimizer.pt")
