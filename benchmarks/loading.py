"""Measure the rate of samples from Elastane's loaders, ledger included, and from PyTorch's.

PyTorch's loaders have a DistributedSampler. One worker consumes the samples and does nothing else, so it
waits for loading alone. Both have the same dataset, batches, number of loader processes and depth of
prefetching, and take turns.
"""

import time
import zlib
from collections.abc import Generator, Iterator
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch
from elastane.run.protocol.actions import BeginRound
from elastane.run.protocol.commit import compute_outcome
from elastane.run.protocol.messages import Leaf
from elastane.run.worker.data.batch_sources import MapBatchSource, make_plan
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from setting import Setting
from usual_step import compute_ratios

MICROBATCH, VIRTUAL_RANKS, PREFETCH = 16, 8, 4
LOADERS = (1, 2)
WARMUP_STEPS = 2
"""Steps with more batches than all loaders have ready."""
TURNS = 8


class Windows(Dataset[Tensor]):
    """Cheap samples: windows of tokens in memory."""

    steps = 240

    def __init__(self) -> None:
        self.tokens = torch.randint(50_000, (1 << 20,), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 8000

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index * 128 : index * 128 + 129]


class Pictures(Dataset[Tensor]):
    """Samples that need about a millisecond of work, as decoding a picture does."""

    steps = 32

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
    """Return samples per second by kind of dataset and number of loaders, a number for each repetition."""
    return {
        kind.__name__.lower(): {
            str(loaders): measure_dataset(kind(), loaders, setting.repetitions) for loaders in LOADERS
        }
        for kind in (Windows, Pictures)
    }


def measure_dataset(dataset: Windows | Pictures, loaders: int, repetitions: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"pytorch": [], "elastane": []}
    over: list[float] = []
    for _ in range(repetitions):
        # Both are open at once and take short turns, so a second of noise affects both alike.
        contestants = {
            "pytorch": load_with_pytorch(dataset, loaders),
            "elastane": load_with_elastane(dataset, loaders),
        }
        turns: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(TURNS + 1):
            for name in list(contestants)[:: 1 if turn % 2 else -1]:
                rate = measure_rate(contestants[name], max(1, dataset.steps // TURNS))
                if turn:
                    turns[name].append(rate)
        for name, batches in contestants.items():
            batches.close()
            rates[name].append(median(turns[name]))
        over.append(median(compute_ratios(turns["elastane"], turns["pytorch"])))
    return {"samples_per_s": rates, "elastane_over_pytorch": over}


def measure_rate(batches: Iterator[Tensor], steps: int) -> float:
    """Return the rate of one turn, without the samples loaded ahead during the other's turn."""
    for _ in range(WARMUP_STEPS * VIRTUAL_RANKS):
        next(batches)
    samples, begin_s = 0, time.perf_counter()
    for _ in range(steps * VIRTUAL_RANKS):
        samples += len(next(batches))
    return samples / (time.perf_counter() - begin_s)


def load_with_pytorch(dataset: Windows | Pictures, loaders: int) -> Generator[Tensor, None, None]:
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


def load_with_elastane(dataset: Windows | Pictures, loaders: int) -> Generator[Tensor, None, None]:
    batch = MICROBATCH * VIRTUAL_RANKS
    plan = make_plan(len(dataset), batch, MICROBATCH, 1 << 30, virtual_ranks=None, seed=0)
    source = MapBatchSource(dataset, plan, None, loaders=loaders, prefetch=PREFETCH)
    try:
        for step in range(1, 1 << 30):
            leaves: dict[int, Leaf] = {}
            for rank in range(VIRTUAL_RANKS):
                source.expect(BeginRound(step, step, 1, 1), range(rank, VIRTUAL_RANKS))
                loaded = source.load(step, rank)
                leaves[rank] = Leaf(rank, 0, 0.0, 1.0, loaded.samples, loaded.checksum)
                if loaded.samples:
                    yield loaded.inputs
            msgspec.json.encode(source.describe_samples(compute_outcome(step, step, leaves, {}), {}))
    finally:
        source.close()
