"""Rounds of inner steps: the bytes of a plain loop, whatever the model has, and mistakes in words."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import elastane
from elastane.run.protocol.sampling import derive_random_key, find_sample_index, find_step_samples
from elastane.run.worker import assembly, worker_settings
from elastane.run.worker.data.determinism import seed_everything
from elastane.run.worker.state.placement import Mirrored

from .lessons import CLASSES, FEATURES, SEED, build_adamw, build_spec, make_samples

RANKS, STEPS, BATCH = 4, 3, 8
NESTEROV = elastane.outer.Nesterov(lr=0.7, momentum=0.9)


def build_plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, CLASSES))


def build_model_with_buffers() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, CLASSES))


def decay(optimizer: optim.Optimizer) -> Any:
    return optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))


@dataclass(frozen=True)
class Case:
    """A training in rounds.

    Args:
        length: samples of the dataset; 52 end each epoch with a short round and a short inner step.
    """

    model: Callable[[], nn.Module] = build_plain_model
    optimizer: Callable[[nn.Module], optim.Optimizer] = build_adamw
    outer: Callable[[Any], optim.Optimizer] = NESTEROV
    scheduler: Callable[[optim.Optimizer], Any] | None = decay
    clip: float | None = 0.5
    length: int = 52
    rounds: int = 7


@dataclass
class Trained:
    model: nn.Module
    losses: list[float]
    rate: float
    run: Any = None


def compute_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.cross_entropy(model(batch[0]), batch[1])


def train_in_rounds(case: Case, each_loss: Any = compute_loss, **wishes: Any) -> Trained:
    worker_settings._settings = worker_settings.WorkerSettings(spec=build_spec(**wishes))
    run = elastane.join()
    model = case.model()
    optimizer = case.optimizer(model)
    scheduler = case.scheduler(optimizer) if case.scheduler else None
    run.prepare(model, optimizer, scheduler=scheduler, clip_grad_norm=case.clip, outer=case.outer)
    losses = []
    for round_ in run.rounds(
        make_samples(case.length), inner_steps=STEPS, ranks=RANKS, global_batch=BATCH, until=case.rounds
    ):
        for step in round_:
            for batch in step:
                step.backward(each_loss(model, batch))
        losses.append(round_.loss)
    return Trained(model, losses, optimizer.param_groups[0]["lr"], run)


def train_plain(case: Case) -> Trained:
    """Make the same rounds in a loop that knows nothing of Elastane but its seeds."""
    seed_everything(SEED)
    model, data = case.model(), make_samples(case.length)
    parameters = list(model.parameters())
    outer = case.outer([{"params": parameters}])
    losses, steps_before = [], 0
    for number in range(1, case.rounds + 1):
        samples = find_step_samples(number, case.length, STEPS * BATCH)
        begin = {name: value.clone() for name, value in model.state_dict().items()}
        leaves, changes, terms = [], [], []
        for rank in range(RANKS):
            model.load_state_dict(begin)
            optimizer = case.optimizer(model)
            scheduler = case.scheduler(optimizer) if case.scheduler else None
            for _ in range(steps_before if scheduler else 0):
                optimizer._opt_called = True
                scheduler.step()
            seen = total = 0
            for step in range(STEPS):
                part = step * RANKS + rank
                positions = samples.list_positions(part, BATCH // RANKS)
                indices = [find_sample_index(p, case.length, SEED, samples.epoch) for p in positions]
                if not indices:
                    break
                seed_everything(derive_random_key(SEED, number, part))
                optimizer.zero_grad()
                loss = compute_loss(model, data[indices])
                loss.backward()
                if case.clip is not None:
                    nn.utils.clip_grad_norm_(parameters, case.clip)
                optimizer.step()
                if scheduler:
                    scheduler.step()
                seen, total = seen + len(indices), total + loss.detach().double() * len(indices)
            share = seen / samples.count
            names = [name for name, _ in model.named_parameters()]
            leaves.append([(begin[n] - p.detach()) * share for n, p in zip(names, parameters, strict=True)])
            changes.append({n: b - begin[n] for n, b in model.named_buffers()} if seen else None)
            terms.append(float(total))
        model.load_state_dict(begin)
        first, second, third, fourth = leaves
        for number_, parameter in enumerate(parameters):
            pairs = (first[number_] + second[number_]), (third[number_] + fourth[number_])
            parameter.grad = pairs[0] + pairs[1]
        outer.step()
        filled = [change for change in changes if change is not None]
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                total_change = sum(change[name] for change in filled)
                buffer.copy_(begin[name] + total_change / len(filled))
        steps_before += -(-samples.count // BATCH)
        losses.append(sum(terms) / samples.count)
    optimizer = case.optimizer(model)
    scheduler = case.scheduler(optimizer) if case.scheduler else None
    for _ in range(steps_before if scheduler else 0):
        optimizer._opt_called = True
        scheduler.step()
    return Trained(model, losses, optimizer.param_groups[0]["lr"])


def assert_same(elastic: Trained, plain: Trained) -> None:
    states = [dict(trained.model.state_dict()) for trained in (elastic, plain)]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert elastic.losses == pytest.approx(plain.losses, rel=1e-12)
    assert elastic.rate == plain.rate


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(outer=functools.partial(optim.SGD, lr=1.0), scheduler=None, clip=None),
        Case(optimizer=lambda model: optim.SGD(model.parameters(), lr=0.1, momentum=0.9), length=96),
        Case(optimizer=lambda model: optim.Adagrad(model.parameters(), lr=0.1)),
    ],
    ids=["nesterov", "average", "sgd", "adagrad"],
)
def test_rounds_train_the_bytes_of_a_plain_loop(case):
    assert_same(train_in_rounds(case), train_plain(case))


def test_sharded_and_mirrored_rounds_train_the_same_bytes(monkeypatch):
    case = Case(model=build_model_with_buffers)
    whole, sharded = train_in_rounds(case), train_in_rounds(case, copies=2)
    assert whole.run.digest.parameters == sharded.run.digest.parameters
    monkeypatch.setattr(assembly, "choose_placement", Mirrored)
    assert train_in_rounds(case).run.digest == whole.run.digest


def test_buffers_take_the_mean_of_what_virtual_ranks_have_changed():
    case = Case(model=build_model_with_buffers, length=96)
    elastic, plain = train_in_rounds(case), train_plain(case)
    torch.testing.assert_close(dict(elastic.model.state_dict()), dict(plain.model.state_dict()))
    assert int(elastic.model[1].num_batches_tracked) == case.rounds * STEPS
