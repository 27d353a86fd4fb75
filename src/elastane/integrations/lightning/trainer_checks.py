"""The settings and habits of a Trainer and a module that a run cannot keep exact, which it refuses."""

from collections import deque
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from elastane.common.errors import BadInput
from elastane.run.worker.values import describe_value

STEP_HOOKS = ("backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping")
GRADIENT_HOOKS = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
REFUSED_CALLBACKS = {
    "BatchSizeFinder": "it trains several times with other batches",
    "DeviceStatsMonitor": "it logs measurements, which differ on each worker",
    "GradientAccumulationScheduler": "it changes the batch of a step, which a run fixes",
    "LearningRateFinder": "it trains several times with other learning rates",
    "OnExceptionCheckpoint": "a worker may end while the run goes on",
    "StochasticWeightAveraging": "it averages weights in a model that joining workers would lack",
    "ThroughputMonitor": "it logs measurements, which differ on each worker",
    "Timer": "it decides by the clock, which differs on each worker",
    "WeightAveraging": "it averages weights in a model that joining workers would lack",
}
"""Callbacks of Lightning, by the name of their class, and why a run cannot have them."""
CONTAINERS = (list, dict, set, deque)


def check_trainer(trainer: Any, module: pl.LightningModule) -> None:
    """Refuse settings and hooks under which workers would differ, or that a run would not obey."""
    _check_numbers(trainer)
    _check_settings(trainer)
    _check_module(module)
    for callback in trainer.callbacks:
        _check_callback(callback)


def _check_settings(trainer: Any) -> None:
    if trainer.gradient_clip_val and (algorithm := trainer.gradient_clip_algorithm) not in (None, "norm"):
        raise BadInput(
            f"Trainer(gradient_clip_algorithm={str(getattr(algorithm, 'value', algorithm))!r})",
            means="a run clips the whole gradient of a step by its norm",
            do="use gradient_clip_algorithm='norm'",
        )
    if trainer.reload_dataloaders_every_n_epochs:
        raise BadInput(
            "Trainer(reload_dataloaders_every_n_epochs=...)",
            means="a run trains on one dataset, so that a worker which joins reads the same",
            do="remove it, and let the dataset's __getitem__ choose what changes",
        )
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        raise BadInput(
            "Trainer(val_check_interval=...) is a time",
            means="the clock differs on each worker, so they would validate after different steps",
            do="pass a number of batches or a fraction of an epoch",
        )
    plugin = trainer.precision_plugin
    if type(plugin) not in (Precision, MixedPrecision, HalfPrecision, DoublePrecision):
        raise BadInput(
            f"Trainer(precision=...) uses {type(plugin).__name__}",
            means="a run trains in fp32, fp64, fp16 or bf16, or with autocast",
            do="use precision='32-true', 'bf16-mixed', '16-mixed', 'bf16-true', '16-true' or '64-true'",
        )


def _check_numbers(trainer: Any) -> None:
    if trainer.overfit_batches:
        raise BadInput(
            f"Trainer(overfit_batches={trainer.overfit_batches!r})",
            means="a run reads every sample once per epoch, in an order of its own",
            do="pass a small dataset: torch.utils.data.Subset(dataset, range(64))",
        )
    devices = len(trainer._accelerator_connector._parallel_devices)
    if devices > 1 or trainer.num_nodes > 1:
        raise BadInput(
            f"Trainer(devices={devices}, num_nodes={trainer.num_nodes})",
            means="each worker of a run has one device, and the run chooses how many workers there are",
            do="pass devices=1, and start several workers with elastane run --workers N",
        )


def _check_module(module: pl.LightningModule) -> None:
    if not module.automatic_optimization:
        raise BadInput(
            "the module has automatic_optimization = False",
            means="its training_step would step the optimizer once per microbatch, and each worker computes "
            "others; a run steps it once, when all gradients are summed",
            do="use automatic optimization with one optimizer; or write the loop with elastane.join() and "
            "run.steps",
        )
    for name in STEP_HOOKS:
        if is_overridden(name, module, pl.LightningModule):
            raise BadInput(
                f"the module overrides {name}",
                means="the run itself computes, sums and clips gradients and steps the optimizer",
                do=f"remove {name}; Trainer(gradient_clip_val=...) clips by the norm of the whole gradient",
            )
    for name in GRADIENT_HOOKS:
        if is_overridden(name, module, pl.LightningModule):
            raise _build_gradient_error("the module", name)
    if _takes_loader(module):
        raise BadInput(
            "training_step takes dataloader_iter",
            means="the run chooses the microbatches of each worker",
            do="take the batch: def training_step(self, batch, batch_idx)",
        )


def _takes_loader(module: pl.LightningModule) -> bool:
    code = getattr(module.training_step, "__code__", None)
    return code is not None and "dataloader_iter" in code.co_varnames[: code.co_argcount]


def _build_gradient_error(owner: str, name: str) -> BadInput:
    return BadInput(
        f"{owner} overrides {name}",
        means="the hook would see the gradients of one worker's microbatches, not those of the step",
        do=f"remove {name}; on_train_batch_end runs after each step, with the new weights",
    )


def _check_callback(callback: pl.Callback) -> None:
    names = {kind.__name__ for kind in type(callback).__mro__}
    if (refused := next((name for name in REFUSED_CALLBACKS if name in names), None)) is not None:
        raise BadInput(
            f"the Trainer has the callback {refused}",
            means=REFUSED_CALLBACKS[refused],
            do=f"remove {refused}" + _suggest_instead(refused),
        )
    for name in GRADIENT_HOOKS:
        if is_overridden(name, callback, pl.Callback):
            raise _build_gradient_error(type(callback).__name__, name)
    if isinstance(callback, ModelCheckpoint):
        _check_checkpoint(callback)


def _suggest_instead(refused: str) -> str:
    if "Averaging" in refused:
        return "; average the weights in on_train_batch_end, into a module in trainer.strategy.run.keep"
    if refused == "Timer":
        return " and max_time; elastane stop ends a run at any time"
    if refused == "OnExceptionCheckpoint":
        return "; elastane run --resume continues after any failure"
    return ""


def _check_checkpoint(callback: Any) -> None:
    reasons = {
        "train_time_interval": (
            callback._train_time_interval,
            "every_n_train_steps: the clock differs on each worker",
        ),
        "save_on_exception": (
            callback.save_on_exception,
            "elastane run --resume, which continues after any failure",
        ),
        "save_last": (callback.save_last == "link", "save_last=True: several workers would replace the link"),
    }
    for name, (value, instead) in reasons.items():
        if value:
            shown = "'link'" if name == "save_last" else describe_value(value)
            raise BadInput(
                f"the ModelCheckpoint has {name}={shown}",
                means="every worker writes checkpoint files, so all of them must decide and write alike",
                do=f"use {instead}",
            )


class ModuleContainers:
    """The lengths of the lists, dicts and sets of a module, to which each worker would add its own items."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._inherited = frozenset(vars(nn.Module()))
        self._lengths: dict[str, int] = {}

    def begin(self) -> None:
        self._lengths = self._measure()

    def _measure(self) -> dict[str, int]:
        return {
            name: len(value)
            for name, value in vars(self._module).items()
            if name not in self._inherited and not name.startswith("_") and isinstance(value, CONTAINERS)
        }

    def check(self) -> None:
        """Check that the attributes are as long as before the microbatch."""
        now = self._measure()
        grown = next((name for name, length in now.items() if length > self._lengths.get(name, 0)), None)
        if grown is not None:
            raise BadInput(
                f"training_step added to self.{grown}",
                means="each worker would have the values of its own microbatches there, and those of a "
                "rehearsal",
                do="log values with self.log, which gives every worker the mean over the step",
            )
