"""A Trainer alone gives what Lightning's own loop gives for the same order of samples."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from elastane.run.protocol.sampling import find_sample_index
from tests.lazy_modules import LazyModule

from .points import Points

lightning = LazyModule("lightning")
modules = LazyModule("tests.integrations.lightning.modules")
training_data = LazyModule("elastane.integrations.lightning.training_data")
logged_values = LazyModule("elastane.integrations.lightning.logged_values")
pytestmark = pytest.mark.usefixtures("libraries")


class OurOrder:
    """Yields the batches of Elastane's order, so that Lightning's own loop can read in it."""

    def __init__(self, length, batch):
        self._length, self._batch, self._batches, self._epoch = length, batch, -(-length // batch), -1

    def __len__(self):
        return self._batches

    def __iter__(self):
        self._epoch += 1
        order = [find_sample_index(p, self._length, 0, self._epoch) for p in range(self._length)]
        return (order[start : start + self._batch] for start in range(0, self._length, self._batch))


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}, {"max_epochs": -1, "max_steps": 7}],
    ids=str,
)
def test_weights_and_metrics_are_those_of_lightning_in_the_same_order(options):
    # The last batch is smaller, except with accumulation: Lightning then halves the gradient of a lone batch.
    data = Points(48 if "accumulate_grad_batches" in options else 44)
    val = DataLoader(Points(20), batch_size=5)
    ours, theirs = modules.Recorder(), modules.Recorder()
    module, other = modules.make_module(), modules.make_module()
    modules.fit(module, DataLoader(data, 8, shuffle=True), val, microbatch=8, callbacks=[ours], **options)
    loader = DataLoader(data, batch_sampler=OurOrder(len(data), 8))
    modules.fit(other, loader, val, callbacks=[theirs], strategy="auto", **options)
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-6, atol=1e-7)
    assert [epoch[:3] for epoch in ours.epochs] == [epoch[:3] for epoch in theirs.epochs]
    for (*_, found), (*_, expected) in zip(ours.epochs, theirs.epochs, strict=True):
        if "accumulate_grad_batches" in options:
            # Lightning's is the loss of the last batch of the step, ours that of the whole step.
            del found["loss_step"], expected["loss_step"]
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_loader_that_does_not_shuffle_is_read_in_its_order():
    module, other = modules.make_module(), modules.make_module()
    loader = DataLoader(Points(44), 8, shuffle=False)
    modules.fit(module, loader, microbatch=8)
    modules.fit(other, loader, strategy="auto")
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "options",
    [{"limit_train_batches": 2}, {"limit_train_batches": 0.67, "accumulate_grad_batches": 2}],
    ids=str,
)
def test_short_epochs_of_ordered_data_are_those_of_lightning(options):
    module, other, ours, theirs = (
        modules.make_module(),
        modules.make_module(),
        modules.Recorder(),
        modules.Recorder(),
    )
    loader, val = DataLoader(Points(48), 8), DataLoader(Points(20), batch_size=5)
    modules.fit(module, loader, val, microbatch=8, callbacks=[ours], **options)
    modules.fit(other, loader, val, callbacks=[theirs], strategy="auto", **options)
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-6, atol=1e-7)
    assert [epoch[:3] for epoch in ours.epochs] == [epoch[:3] for epoch in theirs.epochs]
    assert ours.epochs[-1][1] == 4


def test_short_epochs_of_shuffled_data_go_on_where_the_last_one_ended():
    class Counter(lightning.Callback):
        steps = ()

        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                self.steps += (trainer.global_step,)

    module, other, recorder, counter = (
        modules.make_module(),
        modules.make_module(),
        modules.Recorder(),
        Counter(),
    )
    val = DataLoader(Points(20), batch_size=5)
    # 44 samples are 6 batches: 3 epochs of 4 batches read them twice.
    limits = {"limit_train_batches": 4, "max_epochs": 3, "callbacks": [recorder, counter]}
    modules.fit(module, DataLoader(Points(44), 8, shuffle=True), val, **limits)
    modules.fit(other, DataLoader(Points(44), 8, shuffle=True), val, max_epochs=2)
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in other.state_dict().items())
    assert [epoch[:3] for epoch in recorder.epochs] == [(0, 4, 3), (1, 8, 3), (2, 12, 3)]
    assert counter.steps == (4, 8, 12)


def test_a_fast_dev_run_makes_one_step():
    trainer = modules.fit(None, None, DataLoader(Points(20), batch_size=5), fast_dev_run=True)
    assert (trainer.global_step, trainer.current_epoch) == (1, 1)
    assert "val_loss" in trainer.callback_metrics


def test_the_weights_do_not_depend_on_the_sizes_of_parts_that_workers_share():
    trained = [modules.make_module() for _ in range(2)]
    for module in trained:
        modules.fit(module, microbatch=4)
    one, other = (module.state_dict() for module in trained)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_test_of_the_best_checkpoint_leaves_the_trained_weights_in_place(tmp_path):
    class Tested(modules.PointsModule):
        def test_step(self, batch, batch_idx):
            self.validation_step(batch, batch_idx)

    best = lightning.pytorch.callbacks.ModelCheckpoint(
        tmp_path, monitor="val_loss", mode="max", filename="worst"
    )
    module = Tested()
    val = DataLoader(Points(20), batch_size=5)
    trainer = modules.fit(module, None, val, enable_checkpointing=True, callbacks=[best], max_epochs=4)
    trained = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    loaded = torch.load(tmp_path / "worst.ckpt", weights_only=False)
    assert loaded["global_step"] < trainer.global_step
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.test(module, val, ckpt_path="best", verbose=False)
    assert trainer.callback_metrics["val_loss"].item() == pytest.approx(best.best_model_score.item())
    assert all(torch.equal(tensor, trained[name]) for name, tensor in module.state_dict().items())


def test_a_checkpoint_of_the_run_opens_with_lightning(tmp_path):
    module = modules.make_module()
    trainer = modules.fit(module)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    loaded = modules.Scheduled.load_from_checkpoint(tmp_path / "end.ckpt")
    assert all(torch.equal(t, module.state_dict()[name]) for name, t in loaded.state_dict().items())
    modules.fit(loaded, strategy="auto", ckpt_path=tmp_path / "end.ckpt", max_epochs=3)
    assert not torch.equal(loaded.layer.weight, module.layer.weight)


def test_names_of_files_are_chosen_among_those_that_were_there(tmp_path):
    (tmp_path / "same.ckpt").touch()
    callback = lightning.pytorch.callbacks.ModelCheckpoint(
        tmp_path, filename="same", every_n_epochs=1, save_top_k=-1
    )
    modules.fit(enable_checkpointing=True, callbacks=[callback])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["same-v1.ckpt", "same.ckpt"]
    assert (tmp_path / "same.ckpt").stat().st_size == 0


def test_loggers_of_a_process_alone_write_as_ever(tmp_path):
    modules.fit(
        logger=lightning.pytorch.loggers.CSVLogger(tmp_path, name="", version=""), log_every_n_steps=1
    )
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"loss_step", "loss_epoch"} <= set(header)


def test_validation_follows_the_step_in_which_it_falls():
    class Counter(lightning.Callback):
        def __init__(self):
            self.steps = []

        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                self.steps.append(trainer.global_step)

    val = DataLoader(Points(20), batch_size=5)
    counter = Counter()
    modules.fit(None, None, val, callbacks=[counter], val_check_interval=2, max_epochs=1)
    assert counter.steps == [2, 4]
    counter = Counter()
    modules.fit(
        None, None, val, callbacks=[counter], val_check_interval=3, accumulate_grad_batches=2, max_epochs=1
    )
    assert counter.steps == [2]


@pytest.mark.parametrize(
    ("batch", "accumulated", "asked", "microbatch"),
    [(64, 1, None, 8), (6, 1, None, 1), (9, 1, None, 3), (7, 1, None, 1), (64, 4, None, 64), (64, 4, 32, 32)],
)
def test_a_microbatch_is_chosen_without_regard_to_workers(batch, accumulated, asked, microbatch):
    assert training_data.choose_microbatch(batch, accumulated, asked) == microbatch


def test_a_step_that_one_worker_must_compute_alone_is_pointed_out():
    assert "one worker only" in training_data.describe_elasticity(13, 13)
    assert training_data.describe_elasticity(16, 8) == ""


def test_microbatches_do_not_change_the_state_that_a_joining_worker_receives():
    states = []

    def read(module, batch, loss):
        states.append((module.global_step, module.trainer.strategy.run.keep["lightning"].state_dict()))

    modules.fit(modules.make_module(lambda: modules.Logging(read)), microbatch=2)
    steps = dict(states)
    assert len(states) > len(steps) > 1
    assert all(state == steps[step] for step, state in states)
    assert ["hook", None] in states[0][1]["items"]


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [("train/loss", "train_loss"), ("lr-AdamW", "lr_AdamW"), ("5%", "_5_"), ("x" * 99, "x" * 64)],
)
def test_names_become_identifiers(name, cleaned):
    assert logged_values.clean_name(name) == cleaned


def test_the_trainer_is_the_only_process_of_its_world():
    trainer = modules.fit()
    assert (trainer.world_size, trainer.global_rank, trainer.is_global_zero) == (1, 0, True)
    assert isinstance(trainer.strategy.run.digest.parameters, str)
    assert trainer.strategy.cut_short is False
    assert isinstance(trainer.lightning_module, lightning.LightningModule)
