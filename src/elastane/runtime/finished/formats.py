"""A finished model in formats that others load: transformers, plain PyTorch, distributed checkpoints."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint

from elastane.api.errors import BadInput
from elastane.runtime.finished.configs import CONFIG
from elastane.runtime.finished.named_tensors import NamedTensors, state_dict
from elastane.runtime.finished.optimizer import OptimizerState
from elastane.runtime.finished.shards import model_files


@dataclass(frozen=True)
class Trained:
    """What an export is made of, wherever it comes from.

    Args:
        model: the weights.
        optimizer: its state, if it is to be exported too.
        texts: files that belong beside the weights of a model of ``transformers``, by name.
        max_shard_bytes: of weights in one safetensors file.
    """

    model: NamedTensors
    max_shard_bytes: int
    optimizer: OptimizerState | None = None
    texts: Mapping[str, bytes] = field(default_factory=dict)


def write_hf(trained: Trained, folder: Path) -> None:
    """What ``AutoModel.from_pretrained`` loads, and ``optimizer.pt`` as ``Trainer`` names it.

    Raises:
        BadInput: the model is none of transformers'.
    """
    if CONFIG not in trained.texts:
        raise BadInput(
            "the model has no config.json",
            means="it is not one of transformers' models, so from_pretrained could not build it",
            do="use --format torch or dcp; model.safetensors in the run directory is the weights as they are",
        )
    files, _ = model_files(trained.model, trained.max_shard_bytes)
    for name, write in files.items():
        with (folder / name).open("wb") as file:
            write(file)
    for name, text in trained.texts.items():
        (folder / name).write_bytes(text)
    _save_optimizer(trained, folder)


def write_torch(trained: Trained, folder: Path) -> None:
    """``model.pt`` and ``optimizer.pt``: state dicts for ``torch.load``, weights only."""
    torch.save(state_dict(trained.model), folder / "model.pt")
    _save_optimizer(trained, folder)


def write_dcp(trained: Trained, folder: Path) -> None:
    """A distributed checkpoint of ``{"model": ..., "optimizer": ...}``, the second flattened by names."""
    state: dict[str, Any] = {"model": state_dict(trained.model)}
    if trained.optimizer is not None:
        state["optimizer"] = trained.optimizer.flat_form()
    with warnings.catch_warnings():
        # It warns that it saves from one process, which is what it was asked to do.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save_checkpoint(state, checkpoint_id=folder, no_dist=True)


FORMATS: dict[str, Callable[[Trained, Path], None]] = {
    "hf": write_hf,
    "dcp": write_dcp,
    "torch": write_torch,
}


def _save_optimizer(trained: Trained, folder: Path) -> None:
    if trained.optimizer is not None:
        torch.save(trained.optimizer.torch_form(), folder / "optimizer.pt")
