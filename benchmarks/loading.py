"""How fast samples come: Elastane's loaders, its ledger kept, beside PyTorch's with a DistributedSampler.

One worker consumes and does nothing else, so that loading is all there is to wait for. Both have the same
dataset, batches, number of loader processes and depth of prefetching, and take turns.
"""

import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import torch
from elastane.protocol.actions import Begin
from elastane.protocol.commit import tally
from elastane.protocol.mesh import Leaf
from elastane.runtime.data import MapDeck, make_plan
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from setting import Setting
from usual_step import ratios

MICROBATCH, VIRTUAL_RANKS, PREFETCH = 16, 8, 4
LOADERS = (1, 2)
WARMUP_STEPS = 4


class Windows(Dataset[Tensor]):
    """Cheap samples: windows of tokens in memory."""

    steps = 150

    def __init__(self) -> None:
        self.tokens = torch.randint(50_000, (1 << 20,), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 8000

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index * 128 : index * 128 + 129]


class Pictures(Dataset[Tensor]):
    """Samples that take work, as decoding a picture does: about a millisecond of it."""

    steps = 25

    def __init__(self) -> None:
        noise = np.random.default_rng(0).integers(0, 24, (224, 224, 3), dtype=np.uint8)
        self.stored = zlib.compress(noise.tobytes())

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> Tensor:
        pixels = np.frombuffer(zlib.decompress(self.stored), np.uint8).reshape(224, 224, 3)
        top = index % 32
        cropped = pixels[top : top + 192, top : top + 192].transpose(2, 0, 1)
        return torch.from_numpy(cropped[:, ::2, ::2].astype(np.float32) / 255)


def measure(setting: Setting) -> dict[str, Any]:
    """Samples per second by kind of dataset and number of loaders: one number for each repetition."""
    return {
        kind.__name__.lower(): {
            str(loaders): one(kind(), loaders, setting.repetitions) for loaders in LOADERS
        }
        for kind in (Windows, Pictures)
    }


def one(dataset: Windows | Pictures, loaders: int, repetitions: int) -> dict[str, Any]:
    contestants: dict[str, Callable[[], Iterator[Tensor]]] = {
        "pytorch": lambda: pytorch(dataset, loaders),
        "elastane": lambda: elastane(dataset, loaders),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for repetition in range(repetitions):
        # Turn by turn, and who begins changes too: what else the machine does burdens both alike.
        names = list(contestants)[:: 1 if repetition % 2 else -1]
        for name in names:
            rates[name].append(samples_per_s(contestants[name](), dataset.steps))
    return {
        "samples_per_s": rates,
        "elastane_over_pytorch": ratios(rates["elastane"], rates["pytorch"]),
    }


def samples_per_s(batches: Iterator[Tensor], steps: int) -> float:
    for _ in range(WARMUP_STEPS * VIRTUAL_RANKS):
        next(batches)
    samples, begin_s = 0, time.perf_counter()
    for _ in range(steps * VIRTUAL_RANKS):
        samples += len(next(batches))
    return samples / (time.perf_counter() - begin_s)


def pytorch(dataset: Windows | Pictures, loaders: int) -> Iterator[Tensor]:
    sampler: DistributedSampler[Tensor] = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(
        dataset,
        batch_size=MICROBATCH,
        sampler=sampler,
        num_workers=loaders,
        prefetch_factor=PREFETCH,
        persistent_workers=True,
    )
    for epoch in range(1 << 30):
        sampler.set_epoch(epoch)
        yield from loader


def elastane(dataset: Windows | Pictures, loaders: int) -> Iterator[Tensor]:
    batch = MICROBATCH * VIRTUAL_RANKS
    plan = make_plan(len(dataset), batch, MICROBATCH, 1 << 30, virtual_ranks=None, seed=0)
    deck = MapDeck(dataset, plan, None, loaders=loaders, prefetch=PREFETCH)
    try:
        for step in range(1, 1 << 30):
            leaves: dict[int, Leaf] = {}
            for rank in range(VIRTUAL_RANKS):
                deck.expect(Begin(step, step, 1, 1), range(rank, VIRTUAL_RANKS))
                dealt = deck.deal(step, rank)
                leaves[rank] = Leaf(rank, 0, 0.0, 1.0, dealt.samples, dealt.checksum)
                if dealt.samples:
                    yield dealt.inputs
            msgspec.json.encode(deck.samples(tally(step, step, leaves, {}), {}))
    finally:
        deck.close()
