"""Fabric refuses, in words, what a run cannot keep exact."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from elastane.common.errors import BadInput
from elastane.run.worker.state.live_objects import find_live_objects
from tests.lazy_modules import LazyModule

from .points import Points, make_loader

elastic = LazyModule("elastane.integrations.lightning")
lightning = LazyModule("lightning")
pytestmark = pytest.mark.usefixtures("libraries")


class Script:
    """The parts of a Fabric script."""

    def __init__(self, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.fabric = lightning.Fabric(
                strategy=elastic.ElastaneFabricStrategy(**options), accelerator="cpu"
            )
            self.strategy = self.fabric.strategy
            self.loader = self.fabric.setup_dataloaders(make_loader())
            model = nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.model, self.optimizer = self.fabric.setup(model, optimizer)

    def train(self, act=lambda _script, _number: None, epochs=1):
        for _ in range(epochs):
            for number, (inputs, targets) in enumerate(self.loader):
                loss = functional.cross_entropy(self.model(inputs), targets)
                self.fabric.backward(loss)
                act(self, number)
                self.optimizer.step()
                self.optimizer.zero_grad()


def refuse(act, **options):
    """Return the text of the error with which an action in the loop over batches is refused."""
    script = Script(**options)
    with pytest.raises(BadInput) as refusal:
        script.train(act)
    return str(refusal.value)


def make_sometimes(script):
    schedule = torch.optim.lr_scheduler.StepLR(script.optimizer, 1)
    return lambda _script, number: schedule.step() if number % 2 else None


@pytest.mark.parametrize(
    ("act", "meaning"),
    [
        (lambda s, _n: s.fabric.all_reduce(torch.ones(())), "fabric.all_reduce was called inside a step"),
        (lambda s, _n: s.fabric.all_gather(torch.ones(())), "fabric.all_gather was called inside a step"),
        (lambda s, _n: s.fabric.save("never", {"model": s.model}), "fabric.save was called inside a step"),
        (lambda s, _n: s.fabric.load("never", {"model": s.model}), "would set the state of a run"),
        (lambda s, _n: s.fabric.clip_gradients(s.model, s.optimizer, max_norm=2.0), "clip_grad_norm=2.0"),
        (lambda s, _n: s.fabric.clip_gradients(s.model, s.optimizer, clip_val=1.0), "by its norm"),
        (lambda s, _n: s.optimizer.step(lambda: None), "was given a closure"),
    ],
)
def test_calls_in_a_step_are_refused(act, meaning):
    assert meaning in refuse(act)


def test_the_norm_that_the_strategy_knows_is_accepted():
    script = Script(clip_grad_norm=2.0)
    script.train(lambda s, _n: s.fabric.clip_gradients(s.model, s.optimizer, max_norm=2.0))
    assert script.strategy.run.step == 5


def test_a_schedule_that_is_stepped_for_some_batches_only_is_refused():
    script = Script()
    with pytest.raises(BadInput, match="for some batches only"):
        script.train(make_sometimes(script))


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_of_the_garbage_collector_names_no_schedule(turned, monkeypatch):
    monkeypatch.setattr(
        "elastane.integrations.lightning.fabric_schedules.find_live_objects",
        lambda kind: sorted(find_live_objects(kind), key=lambda s: s.gamma, reverse=turned),
    )
    script = Script()
    schedules = [torch.optim.lr_scheduler.StepLR(script.optimizer, 1, gamma) for gamma in (0.5, 0.2)]
    script.train(lambda _s, _n: schedules[0].step())
    kept = script.strategy.run.keep
    assert [kept[f"fabric_schedule_{number}"].gamma for number in (0, 1)] == [0.2, 0.5]


def test_a_plateau_is_not_stepped_with_a_value_of_a_microbatch():
    script = Script()
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(script.optimizer)
    with pytest.raises(BadInput, match="was given a value"):
        script.train(lambda _s, _n: schedule.step(1.0))


def test_batches_without_a_step_of_the_optimizer_are_refused():
    script = Script()
    batches = iter(script.loader)
    inputs, targets = next(batches)
    script.fabric.backward(functional.cross_entropy(script.model(inputs), targets))
    with pytest.raises(BadInput, match="a batch had no"):
        next(batches)


def test_backward_outside_the_loop_is_refused():
    script = Script()
    with pytest.raises(BadInput, match="backward was called outside the loop"):
        script.fabric.backward(script.model(torch.ones(1, 2)).sum())
    with pytest.raises(BadInput, match="step was called outside the loop"):
        script.optimizer.step()


def test_a_second_optimizer_and_a_second_shuffled_loader_are_refused():
    script = Script()
    other = nn.Linear(2, 2)
    with pytest.raises(BadInput, match="one model with one optimizer"):
        script.fabric.setup(other, torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(BadInput, match="second loader that shuffles"):
        script.fabric.setup_dataloaders(make_loader())
    whole = script.fabric.setup_dataloaders(DataLoader(Points(), batch_size=8))
    assert len(list(whole)) == 5


def test_a_loader_without_a_model_is_refused():
    strategy = elastic.ElastaneFabricStrategy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fabric = lightning.Fabric(strategy="elastane", accelerator="cpu")
        loader = fabric.setup_dataloaders(make_loader())
    with pytest.raises(BadInput, match="iterated before"):
        next(iter(loader))
    with pytest.raises(BadInput, match="no training loader yet"):
        next(strategy.epochs(2))


def test_the_optimizer_is_not_loaded_from_a_file(tmp_path):
    script = Script()
    script.fabric.save(tmp_path / "state.ckpt", {"model": script.model, "optimizer": script.optimizer})
    script.fabric.load(tmp_path / "state.ckpt", {"model": script.model}, strict=False)
    with pytest.raises(BadInput, match="would set the state of a run"):
        script.fabric.load(tmp_path / "state.ckpt", {"optimizer": script.optimizer})


def test_passes_are_epochs_of_the_run():
    script = Script()
    script.train(epochs=2)
    assert script.strategy.run.step == 10
    assert list(script.strategy.epochs(4)) == [2, 3]
