"""A small training, run by Elastane and by a plain loop that must give the same results."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

import elastane
from elastane.run.nouns.spec import RunSpec
from elastane.run.protocol.sampling import derive_random_key, find_sample_index, find_step_samples
from elastane.run.worker import worker_settings
from elastane.run.worker.data.determinism import seed_everything
from elastane.run.worker.session import Run

FEATURES, CLASSES = 6, 4
SEED = 0


def make_samples(length: int = 20) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(length, FEATURES, generator=generator)
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(1))


def compute_mean_loss(model: nn.Module, batch: Any) -> tuple[torch.Tensor, float | None]:
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets), None


def build_adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


@dataclass(frozen=True)
class Lesson:
    """A training: the model, the data and the way to train.

    Args:
        model: builds the model.
        optimizer: builds the optimizer of a model.
        loss: returns ``(loss, weight)`` for a model and a batch; without a weight the loss is a mean.
        scheduler: builds the schedule of an optimizer.
        clip: the largest norm of the gradient.
        scaler: builds a ``GradScaler``.
        data: a map-style dataset.
        steps: the number of steps.
        global_batch: samples per step.
        microbatch: samples per virtual rank.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer] = build_adamw
    loss: Callable[[nn.Module, Any], tuple[torch.Tensor, float | None]] = compute_mean_loss
    scheduler: Callable[[Optimizer], Any] | None = None
    clip: float | None = None
    scaler: Callable[[], GradScaler] | None = None
    data: TensorDataset = field(default_factory=make_samples)
    steps: int = 6
    global_batch: int = 8
    microbatch: int = 2


@dataclass
class Learned:
    model: nn.Module
    optimizer: Optimizer
    scheduler: Any
    losses: list[float]
    run: Run | None = None
    scaler: GradScaler | None = None
    skipped: list[int] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)


def build_spec(**wishes: Any) -> RunSpec:
    return RunSpec(name="alone", script="", **wishes)


def prepare_lesson(lesson: Lesson, **wishes: Any) -> Learned:
    """Prepare a model in a run that has not trained yet; ``wishes`` are fields of `RunSpec`."""
    worker_settings._settings = worker_settings.WorkerSettings(spec=build_spec(**wishes))
    run = elastane.join()
    model = lesson.model()
    optimizer = lesson.optimizer(model)
    scheduler = lesson.scheduler(optimizer) if lesson.scheduler else None
    scaler = lesson.scaler() if lesson.scaler else None
    run.prepare(model, optimizer, scheduler=scheduler, scaler=scaler, clip_grad_norm=lesson.clip)
    return Learned(model, optimizer, scheduler, [], run, scaler)


def train_elastic(lesson: Lesson, **wishes: Any) -> Learned:
    """Train with Elastane, in this process alone."""
    learned = prepare_lesson(lesson, **wishes)
    assert learned.run is not None
    for step in learned.run.steps(
        lesson.data, global_batch=lesson.global_batch, microbatch=lesson.microbatch, until=lesson.steps
    ):
        for batch in step:
            loss, weight = lesson.loss(learned.model, batch)
            step.backward(loss, weight=weight)
        learned.losses.append(step.loss)
        if step.skipped:
            learned.skipped.append(step.number)
        if learned.scaler is not None:
            learned.scales.append(learned.scaler.get_scale())
    return learned


def train_plain(lesson: Lesson) -> Learned:
    """Train in a loop with gradient accumulation, on the same samples and random numbers."""
    seed_everything(SEED)
    model = lesson.model()
    optimizer = lesson.optimizer(model)
    scheduler = lesson.scheduler(optimizer) if lesson.scheduler else None
    # A disabled scaler does nothing.
    scaler = lesson.scaler() if lesson.scaler else GradScaler("cpu", enabled=False)
    learned = Learned(model, optimizer, scheduler, [], scaler=scaler)
    for step in range(1, lesson.steps + 1):
        optimizer.zero_grad()
        learned.losses.append(_accumulate_step(lesson, model, step, scaler))
        scaler.unscale_(optimizer)
        if lesson.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), lesson.clip)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        learned.scales.append(scaler.get_scale())
        if learned.scales[-1] < scale:
            learned.skipped.append(step)
        if scheduler is not None:
            # A schedule warns if its first step follows a skipped step of the optimizer.
            optimizer._opt_called = True
            scheduler.step()
    return learned


def _accumulate_step(lesson: Lesson, model: nn.Module, step: int, scaler: GradScaler) -> float:
    """Compute a global batch: sum the gradients, and change buffers by the mean change of a microbatch."""
    step_samples = find_step_samples(step, len(lesson.data), lesson.global_batch)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    changes = {name: torch.zeros_like(buffer) for name, buffer in before.items()}
    total, divisor, microbatches = 0.0, 0.0, 0
    for rank, batch in _iterate_microbatches(lesson, step):
        seed_everything(derive_random_key(SEED, step, rank))
        loss, weight = lesson.loss(model, batch)
        size = len(batch[0])
        share = 1.0 if weight is not None else size / step_samples.count
        scaler.scale(loss * share).backward()
        total += loss.item() * share
        divisor += weight or 0.0
        microbatches += 1
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                changes[name] += buffer - before[name]
                buffer.copy_(before[name])
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name] + changes[name] / microbatches)
    if divisor:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= divisor
        return total / divisor
    return total


def _iterate_microbatches(lesson: Lesson, step: int) -> Iterator[tuple[int, Any]]:
    length = len(lesson.data)
    step_samples = find_step_samples(step, length, lesson.global_batch)
    for rank in range(lesson.global_batch // lesson.microbatch):
        positions = step_samples.list_positions(rank, lesson.microbatch)
        indices = [find_sample_index(p, length, SEED, step_samples.epoch) for p in positions]
        if indices:
            yield rank, lesson.data[indices]


def assert_alike(elastic: Learned, plain: Learned, tolerance: float = 1e-5) -> None:
    """Assert that two trainings are equal up to the order of floating-point sums."""
    torch.testing.assert_close(elastic.losses, plain.losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        dict(elastic.model.state_dict()), dict(plain.model.state_dict()), rtol=tolerance, atol=tolerance
    )


def assert_same_bits(one: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()), rtol=0, atol=0)
