"""The training job of every contestant: a GPT over synthetic tokens, with V microbatches per step.

Shapes: B sequences, T positions, C channels, V token values.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

VOCABULARY = 512


@dataclass(frozen=True)
class Size:
    """One size of the model and its microbatch (sequences of ``context`` tokens)."""

    channels: int
    layers: int
    heads: int
    context: int
    microbatch: int


SIZES = {
    "1m": Size(channels=128, layers=4, heads=4, context=64, microbatch=2),
    "4m": Size(channels=256, layers=4, heads=4, context=64, microbatch=3),
    "10m": Size(channels=384, layers=6, heads=6, context=64, microbatch=3),
    "10m-short": Size(channels=384, layers=6, heads=6, context=64, microbatch=2),
    "100m": Size(channels=768, layers=14, heads=12, context=64, microbatch=1),
}


class GPT(nn.Module):
    """Decoder-only transformer with dropout; the embedding and the output share one matrix."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.read = nn.Embedding(VOCABULARY, size.channels)
        self.place = nn.Embedding(size.context, size.channels)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                size.channels,
                size.heads,
                4 * size.channels,
                dropout=0.1,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.channels)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(size.context), persistent=False
        )
        nn.init.normal_(self.read.weight, std=0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC = self.read(tokens_BT) + self.place.weight
        for layer in self.layers:
            x_BTC = layer(x_BTC, src_mask=self.get_buffer("mask"), is_causal=True)
        return F.linear(self.norm(x_BTC), self.read.weight).transpose(1, 2)


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Sequences that are a pure function of their index, so that every contestant sees the same ones."""

    def __init__(self, context: int, length: int = 100_000) -> None:
        self.context, self.length = context, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(VOCABULARY, (self.context + 1,), generator=generator)
        return tokens[:-1], tokens[1:]


def divide(model: GPT, mesh: Any = None) -> None:
    """Divide a model by FSDP2: over all processes, or over the last dimension of a mesh, as HSDP does."""
    # Importing FSDP takes a while, and most contestants do not need it.
    from torch.distributed.fsdp import fully_shard

    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    # Fused: the fastest AdamW on a CPU, for all contestants.
    return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def compute_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets)
