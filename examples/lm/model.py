"""A small pre-norm GPT over bytes: rotary positions, dropout, one matrix for embedding and output.

Shapes: B windows, T positions, H heads, C channels, V byte values.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BYTE_VALUES = 256


class Attention(nn.Module):
    """Causal self-attention with positions as rotations of queries and keys."""

    def __init__(self, channels: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(channels, 3 * channels, bias=False)
        self.out = nn.Linear(channels, channels, bias=False)
        width = channels // heads
        frequencies = 10_000.0 ** (-torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(context), frequencies)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        batch, length, channels = x_BTC.shape
        split = self.query_key_value(x_BTC).view(batch, length, 3, self.heads, channels // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        # No dropout on attention weights: with it CPUs leave the fused kernel and take 1.3 times as long.
        mixed = F.scaled_dot_product_attention(self.rotated(query), self.rotated(key), value, is_causal=True)
        out_BTC: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, channels))
        return out_BTC

    def rotated(self, x_BHTC: Tensor) -> Tensor:
        length = x_BHTC.shape[2]
        cosine, sine = self.get_buffer("cosine")[:length], self.get_buffer("sine")[:length]
        first, second = x_BHTC.chunk(2, dim=-1)
        return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


class Layer(nn.Module):
    def __init__(self, channels: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.mix = nn.Sequential(
            nn.LayerNorm(channels), Attention(channels, heads, context), nn.Dropout(dropout)
        )
        self.think = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            nn.Dropout(dropout),
        )

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.mix(x_BTC)
        out_BTC: Tensor = x_BTC + self.think(x_BTC)
        return out_BTC


class GPT(nn.Module):
    """A model that predicts each next byte from at most ``context`` bytes before it.

    ``forward`` takes byte values (B, T) and returns logits (B, V, T), with the classes second, as
    ``F.cross_entropy`` expects them.
    """

    def __init__(
        self,
        channels: int = 96,
        layers: int = 4,
        heads: int = 3,
        context: int = 128,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.read = nn.Embedding(BYTE_VALUES, channels)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(channels, heads, context, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        self.write = nn.Linear(channels, BYTE_VALUES, bias=False)
        self.write.weight = self.read.weight
        nn.init.normal_(self.read.weight, std=0.02)

    def forward(self, bytes_BT: Tensor) -> Tensor:
        x_BTC = self.dropout(self.read(bytes_BT))
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        logits_BTV: Tensor = self.write(self.norm(x_BTC))
        return logits_BTV.transpose(1, 2)
