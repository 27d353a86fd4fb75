"""Checkpoints of small trained models, with several writers, on any storage."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.rectangles import sort_dims
from elastane.run.nouns.checkpoints import Manifest, format_checkpoint_name, format_part_name
from elastane.run.worker.checkpoints.part_encoding import EncodedPart, TensorSlice
from elastane.run.worker.checkpoints.publisher import publish_checkpoint


class Small(nn.Module):
    """A convolution, batch norm and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.low = nn.Parameter(torch.randn(5, 3).bfloat16())
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, images: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        features = self.norm(self.conv(images)).mean((2, 3)) * self.scale + self.embed(words)
        return self.head(features).sum() + self.low.float().pow(2).sum()


def build_adamw(model: nn.Module) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=0.01)


def build_momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


OPTIMIZERS = {"adamw": build_adamw, "momentum": build_momentum}


def train(kind: str, *, seed: int = 0, steps: int = 2) -> tuple[Small, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Small().to(memory_format=torch.channels_last)
    optimizer = OPTIMIZERS[kind](model)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 6, 6), torch.tensor([1, 5])).backward()
        optimizer.step()
    return model, optimizer


def build_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state that a user of plain PyTorch saves."""
    return {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}


def iterate_leaves(value: Any, path: tuple = ()):
    """Yield tensors and plain values of a nested state dict, as DCP names them."""
    # DCP keeps lists of plain values whole.
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from iterate_leaves(inner, (*path, key))
    elif isinstance(value, list) and any(isinstance(inner, dict | torch.Tensor) for inner in value):
        for number, inner in enumerate(value):
            yield from iterate_leaves(inner, (*path, number))
    else:
        yield path, value


def cut_slices(key: str, tensor: torch.Tensor, borders: list[int]) -> list[TensorSlice]:
    """Cut a dense tensor at these positions of its memory."""
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    flat = tensor.detach().permute(sort_dims(shape, stride)).reshape(-1)
    cuts = sorted({0, flat.numel(), *(b for b in borders if b < flat.numel())})
    pairs = list(pairwise(cuts)) or [(0, 0)]
    return [TensorSlice(key, shape, stride, start, stop, flat[start:stop]) for start, stop in pairs]


def save(
    catalog: Catalog,
    step: int,
    nested: dict[str, Any],
    *,
    writers: int = 3,
    borders: Sequence[int] = (5, 17, 40),
    metrics: dict[str, float] | None = None,
) -> Manifest:
    """Write and publish a checkpoint; the writers take turns with the slices."""
    name = format_checkpoint_name(step)
    shares: list[list[TensorSlice]] = [[] for _ in range(writers)]
    plain, seen, aliases = {}, {}, {}
    turn = 0
    for path, value in iterate_leaves(nested):
        if not isinstance(value, torch.Tensor):
            plain[path] = value
            continue
        key = ".".join(map(str, path))
        if value.numel() and value.data_ptr() in seen:
            aliases[key] = seen[value.data_ptr()]
            continue
        seen[value.data_ptr()] = key
        for entry in cut_slices(key, value, list(borders)):
            shares[turn % writers].append(entry)
            turn += 1
    parts = []
    for worker, entries in enumerate(shares):
        encoded = EncodedPart(format_part_name(worker), entries)
        parts.append(encoded.describe(catalog.write(name, encoded.name, encoded)))
    manifest = Manifest(
        name=name,
        step=step,
        created="2026-01-01T00:00:00Z",
        parts=tuple(parts),
        aliases=aliases,
        metrics=metrics or {},
    )
    return publish_checkpoint(catalog, manifest, plain)
