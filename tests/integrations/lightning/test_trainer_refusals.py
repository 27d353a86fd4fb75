"""A Trainer refuses, in words, what a run cannot keep exact."""

import warnings
from datetime import timedelta

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, WeightedRandomSampler

from elastane.common.errors import BadInput
from tests.lazy_modules import LazyModule

from .points import Points, Stream, make_loader

lightning = LazyModule("lightning")
modules = LazyModule("tests.integrations.lightning.modules")
pytestmark = pytest.mark.usefixtures("libraries")
HOUR = timedelta(hours=1)


def refuse(**arguments):
    """Return the text of the error with which a training is refused."""
    with pytest.raises(BadInput) as refusal:
        modules.fit(**arguments)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("options", "meaning"),
    [
        ({"limit_train_batches": 0}, "train on nothing"),
        ({"limit_train_batches": 0.1}, "train on nothing"),
        ({"limit_train_batches": 3, "accumulate_grad_batches": 2}, "an epoch has whole steps"),
        ({"overfit_batches": 1}, "every sample once per epoch"),
        ({"reload_dataloaders_every_n_epochs": 1}, "trains on one dataset"),
        ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, "by its norm"),
        ({"val_check_interval": HOUR, "check_val_every_n_epoch": None}, "the clock differs"),
        ({"max_time": HOUR}, "decides by the clock"),
        ({"val_check_interval": 6}, "an epoch has 5 batches"),
        ({"max_epochs": -1}, "a run has a last step"),
        ({"devices": 2}, "has one device"),
    ],
    ids=str,
)
def test_settings_are_refused(options, meaning):
    assert meaning in refuse(**options)


@pytest.mark.parametrize(
    ("name", "options", "meaning"),
    [
        ("StochasticWeightAveraging", {"swa_lrs": 0.1}, "joining workers would lack"),
        ("EMAWeightAveraging", {}, "joining workers would lack"),
        ("GradientAccumulationScheduler", {"scheduling": {0: 2}}, "a run fixes"),
        ("Timer", {"duration": HOUR}, "decides by the clock"),
        ("ModelCheckpoint", {"train_time_interval": HOUR}, "decide and write alike"),
        ("ModelCheckpoint", {"save_on_exception": True}, "decide and write alike"),
        ("ModelCheckpoint", {"save_last": "link"}, "decide and write alike"),
    ],
    ids=str,
)
def test_callbacks_are_refused(name, options, meaning, tmp_path):
    callback = getattr(lightning.pytorch.callbacks, name)(**options)
    assert meaning in refuse(callbacks=[callback], enable_checkpointing=True, folder=tmp_path)


def test_a_part_of_the_optimizers_state_is_not_written(monkeypatch, tmp_path):
    trainer = modules.fit()
    monkeypatch.setattr("elastane.integrations.lightning.trainer_strategy._has_shards", lambda: True)
    with pytest.raises(BadInput, match="weights_only=True"):
        trainer.save_checkpoint(tmp_path / "end.ckpt")
    assert not list(tmp_path.iterdir())
    trainer.save_checkpoint(tmp_path / "end.ckpt", weights_only=True)
    assert "optimizer_states" not in torch.load(tmp_path / "end.ckpt", weights_only=False)


def test_hooks_that_see_gradients_are_refused():
    class Reader(lightning.Callback):
        def on_after_backward(self, trainer, pl_module):
            pass

    class Clipper(modules.PointsModule):
        def configure_gradient_clipping(self, *args, **options):
            pass

    class Owner(modules.PointsModule):
        def on_before_optimizer_step(self, optimizer):
            pass

    assert "gradients of one worker's microbatches" in refuse(callbacks=[Reader()])
    assert "the module overrides configure_gradient_clipping" in refuse(module=Clipper())
    assert "gradients of one worker's microbatches" in refuse(module=Owner())


def test_manual_optimization_is_refused():
    module = modules.PointsModule()
    module.automatic_optimization = False
    assert "automatic_optimization = False" in refuse(module=module)


@pytest.mark.parametrize(
    ("make", "meaning"),
    [
        (
            lambda: make_loader(shuffle=False, sampler=WeightedRandomSampler([1.0] * 40, 40)),
            "sampler of its own",
        ),
        (lambda: DataLoader(Points(), batch_sampler=[[0, 1], [2, 3]]), "batch sampler of its own"),
        (lambda: make_loader(batch_size=None, shuffle=False), "batch sampler of its own"),
        (lambda: DataLoader(Stream(), batch_size=8), "is a stream"),
        (lambda: [make_loader(), make_loader()], "one torch.utils.data.DataLoader"),
        (lambda: make_loader(batch_size=16, drop_last=True), "8 more than whole batches of 16"),
        (lambda: make_loader(worker_init_fn=print, num_workers=0), "worker_init_fn"),
        (
            lambda: DataLoader(Points(), batch_sampler=BatchSampler(SequentialSampler(Points()), 8, False)),
            "batch sampler of its own",
        ),
    ],
)
def test_training_data_that_the_run_would_read_otherwise_is_refused(make, meaning):
    assert meaning in refuse(loader=make())


def test_a_microbatch_that_does_not_divide_the_step_is_refused():
    assert "microbatch=3 (int) for steps of 8 samples" in refuse(microbatch=3)


def count(module, batch, loss):
    module.log("count", len(batch[0]) * 1.0, on_epoch=True, reduce_fx="sum")


def log_sometimes(module, batch, loss):
    if batch[0].sum() > 0:
        module.log("positive", 1.0)


def log_two_names(module, batch, loss):
    module.log("a/b", 1.0)
    module.log("a_b", 2.0)


def append(module, batch, loss):
    module.outputs.append(loss)


def stop(module, batch, loss):
    module.trainer.should_stop = True


def gather(module, batch, loss):
    module.all_gather(loss)


def save(module, batch, loss):
    module.trainer.save_checkpoint("never")


@pytest.mark.parametrize(
    ("action", "meaning"),
    [
        (count, "the mean over its samples of each value"),
        (log_sometimes, "for some microbatches of the step only"),
        (log_two_names, "one value with the name a_b"),
        (append, "added to self.outputs"),
        (stop, "set trainer.should_stop"),
        (save, "trainer.save_checkpoint was called inside a step"),
        (gather, "all_gather was called inside a step"),
    ],
)
def test_training_steps_on_which_workers_would_differ_are_refused(action, meaning):
    module = modules.Logging(action)
    module.outputs = []
    assert meaning in refuse(module=module, microbatch=2)


def test_a_training_step_without_a_loss_is_refused():
    class Skipping(modules.PointsModule):
        def training_step(self, batch, batch_idx):
            return None

    assert "training_step returned None" in refuse(module=Skipping())


def test_a_metric_with_a_state_is_refused_in_a_training_step():
    from torchmetrics import MeanMetric

    class Counting(modules.PointsModule):
        def __init__(self):
            super().__init__()
            self.mean = MeanMetric()

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("mean", self.mean)
            return loss

    assert "was given a MeanMetric in training_step" in refuse(module=Counting())


def test_an_epoch_that_ends_early_is_refused():
    class Ending(modules.PointsModule):
        def on_train_batch_start(self, batch, batch_idx):
            return -1

    assert "ends an epoch early" in refuse(module=Ending())


def test_a_second_fit_and_a_checkpoint_to_resume_from_are_refused(tmp_path):
    trainer = modules.fit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(BadInput, match="called twice"):
            trainer.fit(modules.PointsModule(), make_loader())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    assert "resumes from its own checkpoints" in refuse(ckpt_path=tmp_path / "end.ckpt")


def test_the_run_is_not_there_before_fit():
    from elastane.integrations.lightning import ElastaneStrategy

    with pytest.raises(BadInput, match="no run yet"):
        _ = ElastaneStrategy().run


def test_the_name_elastane_is_that_of_both_strategies():
    from lightning.fabric.strategies import STRATEGY_REGISTRY

    from elastane.integrations.lightning import ElastaneStrategy

    assert isinstance(lightning.Trainer(strategy="elastane", logger=False).strategy, ElastaneStrategy)
    assert "elastane" in STRATEGY_REGISTRY
    assert torch.initial_seed() is not None


@pytest.mark.usefixtures("two_processes")
def test_a_worker_of_several_processes_has_no_strategy():
    error = refuse()
    assert "the strategy of Lightning is not available with --processes" in error
    assert "fully_shard" in error
