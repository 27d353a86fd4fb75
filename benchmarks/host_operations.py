"""Count what a step asks of the host: calls of torch, reads of tensors, and Elastane's own Python.

A GPU waits for the host wherever a model's kernels are short. The counts are taken on the CPU, in the
placement of a GPU (``mirrored``) and in that of the CPU, beside a plain loop that trains the same model: a
Llama of 12 layers with 111 tensors, four microbatches a step, clipping, AdamW.

``--profile`` prints the functions of Elastane that take most of its time instead, for a model so narrow that
the host is all that counts.
"""

import argparse
import cProfile
import pstats
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from unittest.mock import patch

import elastane
import torch
from elastane.run.worker import assembly
from elastane.run.worker.state import square_sums
from elastane.run.worker.state.placement import Mirrored
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

LAYERS, HEADS, LENGTH, TOKENS = 12, 12, 8, 1024
WIDTH, NARROW = 264, 24
VIRTUAL_RANKS = 4
WARMUP = 3
"""Steps before the counted one."""
READS = frozenset({"item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__"})
SHOWN = 20


@dataclass
class Counts:
    """What one step asked of the host.

    Args:
        calls: the calls of torch, by operation, also those of the backward passes.
        reads: the reads of tensors by the thread that trains, which wait for a device.
        step_s: CPU seconds of each step that was not counted.
    """

    calls: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    step_s: list[float] = field(default_factory=list)


class _Calls(TorchDispatchMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = counts

    def __torch_dispatch__(
        self, func: Any, _types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._counts.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(
        self, func: Any, _types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if (name := getattr(func, "__name__", "")) in READS:
            self._counts.reads[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def count(counts: Counts) -> Iterator[None]:
    with _Calls(counts), _Reads(counts):
        yield


class Layer(nn.Module):
    """A layer of a Llama without rotary embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        normed = self.norms[0](x_BTD)
        b, t, d = normed.shape
        query, key, value, out = self.projections
        q, k, v = (part(normed).view(b, t, HEADS, -1).transpose(1, 2) for part in (query, key, value))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + out(attended.transpose(1, 2).reshape(b, t, d))
        normed = self.norms[1](x_BTD)
        changed: torch.Tensor = self.down(F.silu(self.gate(normed)) * self.up(normed))
        return x_BTD + changed


class Llama(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(LAYERS)))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, TOKENS, bias=False)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.layers(self.embedding(tokens_BT))))
        return logits


def compute_loss(model: nn.Module, tokens_BT: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens_BT[:, :-1]).flatten(0, 1), tokens_BT[:, 1:].flatten())


def make_data() -> torch.Tensor:
    return torch.randint(0, TOKENS, (1024, LENGTH + 1), generator=torch.Generator().manual_seed(0))


def build(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Llama(width)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)


def count_plain(width: int = WIDTH, steps: int = WARMUP + 1) -> Counts:
    """Count a step of a plain loop with gradient accumulation."""
    counts, data = Counts(), make_data()
    model, optimizer = build(width)
    for step in range(steps):
        began_s = time.process_time()
        with count(counts) if step == WARMUP else nullcontext():
            for rank in range(VIRTUAL_RANKS):
                sample = data[step * VIRTUAL_RANKS + rank].unsqueeze(0)
                (compute_loss(model, sample) / VIRTUAL_RANKS).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
        if step > WARMUP:
            counts.step_s.append(time.process_time() - began_s)
    return counts


def count_elastic(
    width: int = WIDTH,
    steps: int = WARMUP + 1,
    *,
    mirrored: bool,
    profile: cProfile.Profile | None = None,
) -> Counts:
    """Count a step of Elastane, with everything from one step to the next.

    Args:
        mirrored: place the model as on a GPU.
        profile: observes the steps after the counted one.
    """
    with ExitStack() as placed:
        if mirrored:
            placed.enter_context(patch.object(assembly, "choose_placement", Mirrored))
            placed.enter_context(patch.object(square_sums, "is_on_device", lambda _: True))
        return _count_steps(width, steps, profile)


def _count_steps(width: int, steps: int, profile: cProfile.Profile | None) -> Counts:
    counts = Counts()
    run = elastane.join()
    model, _ = run.prepare(*build(width), clip_grad_norm=1.0)
    counting = count(counts)
    began_s = 0.0
    for step in run.steps(list(make_data()), global_batch=VIRTUAL_RANKS, microbatch=1, until=steps + 1):
        if step.number == WARMUP + 2:
            counting.__exit__(None, None, None)
            if profile is not None:
                profile.enable()
        elif step.number > WARMUP + 2:
            counts.step_s.append(time.process_time() - began_s)
        if step.number == WARMUP + 1:
            counting.__enter__()
        began_s = time.process_time()
        for sample in step:
            step.backward(compute_loss(model, sample))
    if profile is not None:
        profile.disable()
    return counts


def print_counts(name: str, ours: Counts, plain: Counts) -> None:
    extra = ours.calls.total() - plain.calls.total()
    print(f"\n{name}: {ours.calls.total()} calls of torch a step, {extra:+d}")
    difference = Counter(ours.calls)
    difference.subtract(plain.calls)
    for call, number in sorted(difference.items(), key=lambda item: -abs(item[1]))[:SHOWN]:
        if number:
            print(f"  {number:+6d} {call}")
    reads = Counter(ours.reads)
    reads.subtract(plain.reads)
    print(f"  reads beyond the plain loop: { ({read: n for read, n in reads.items() if n}) }")


def print_profile(profile: cProfile.Profile, steps: int) -> None:
    rows = []
    for (file, _, name), (_, calls, own, total, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if "/elastane/" in file:
            rows.append(
                (
                    own / steps * 1e3,
                    total / steps * 1e3,
                    calls / steps,
                    f"{file.split('/elastane/')[-1]}:{name}",
                )
            )
    print(
        f"\nfunctions of Elastane: {sum(row[0] for row in rows):.2f} ms a step, profiled; own, total, calls"
    )
    for own, total, calls, name in sorted(rows, reverse=True)[:SHOWN]:
        print(f"  {own:7.3f} {total:8.3f} {calls:8.1f} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model; a multiple of 12")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps = WARMUP + 1 + options.steps
    if options.profile:
        profile_steps(steps)
        return
    plain = count_plain(options.width, steps)
    print(
        f"plain loop: {plain.calls.total()} calls of torch a step; {median(plain.step_s) * 1e3:.1f} ms of CPU"
    )
    for name, mirrored in (("mirrored", True), ("in place", False)):
        ours = count_elastic(options.width, steps, mirrored=mirrored)
        print_counts(name, ours, plain)
        print(f"  {median(ours.step_s) * 1e3:.1f} ms of CPU a step")


def profile_steps(steps: int) -> None:
    """Profile Elastane in this process, which must not have other models: it would watch them, too."""
    profile = cProfile.Profile(time.process_time)
    count_elastic(NARROW, steps, mirrored=True, profile=profile)
    print_profile(profile, steps - WARMUP - 1)


if __name__ == "__main__":
    main()
