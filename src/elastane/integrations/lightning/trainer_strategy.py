"""The strategy that trains with a Trainer in an elastic run: ``Trainer(strategy="elastane")``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies.single_device import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import Optimizer

from elastane.common.errors import BadInput
from elastane.integrations.lightning.checkpoint_files import (
    AtomicCheckpointIO,
    CheckpointNames,
    LeftoverPartials,
)
from elastane.integrations.lightning.fit_loop import EpochsOfRun
from elastane.integrations.lightning.logged_values import RunLogger
from elastane.integrations.lightning.trainer_checks import check_trainer
from elastane.integrations.lightning.training_run import TrainingRun, choose_device
from elastane.run.worker import worker_settings
from elastane.run.worker.session import Run

CHECKPOINTS = "lightning"
"""The folder for checkpoints in the run directory, unless a ModelCheckpoint has a folder."""
WEIGHTS_ONLY = (
    "note: with --copies N the checkpoint files of Lightning have the weights and no optimizer state, of "
    "which each worker holds a part; the run's own checkpoints have it whole"
)


class ElastaneStrategy(SingleDeviceStrategy):
    """Trains a module as an elastic run: workers may join, leave and die.

    Every worker runs the script and its Trainer as the only process of a world of one. The run divides the
    microbatches of each step among the workers; all hooks run between two steps, on all of them alike.

    Args:
        microbatch: the samples of a virtual rank; None: a batch, if a step has several; otherwise
            the smallest part of up to 8 equal parts of a batch.
        device: of this worker; None: the one that Lightning chooses.
        checkpoint_io: of Lightning; None: files that appear complete or not at all.
    """

    strategy_name = "elastane"

    def __init__(
        self,
        microbatch: int | None = None,
        *,
        device: torch.device | str | None = None,
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
    ) -> None:
        super().__init__(
            device or "cpu",
            accelerator=accelerator,
            checkpoint_io=checkpoint_io or AtomicCheckpointIO(),
            precision_plugin=precision_plugin,
        )
        self._microbatch, self._chosen = microbatch, device is not None
        self._training: TrainingRun | None = None
        self._files = CheckpointNames()
        self._partials = LeftoverPartials(self._files)
        self._trained: dict[str, torch.Tensor] | None = None

    @property
    def run(self) -> Run:
        """The run, once the Trainer fits."""
        if self._training is None:
            raise BadInput(
                "the strategy has no run yet",
                means="Trainer.fit joins the run",
                do="use strategy.run in a hook of the module, or after trainer.fit(...)",
            )
        return self._training.run

    @property
    def cut_short(self) -> bool:
        """The run was stopped or paused before its last step; a later attempt may continue it."""
        return self._training is not None and self._training.cut_short

    def setup_environment(self) -> None:
        """Join the run if the Trainer fits, and replace the Trainer's fit loop."""
        assert self.lightning_module is not None, "the Trainer has connected its module"
        trainer = self.lightning_module.trainer
        if not self._chosen and self.accelerator is not None:
            self._root_device = choose_device(self.accelerator)
        if trainer.state.fn == TrainerFn.FITTING:
            self._take_over(trainer)
        super().setup_environment()

    def _take_over(self, trainer: Any) -> None:
        if self._training is not None:
            raise BadInput(
                "Trainer.fit was called twice",
                means="a run trains one model once, from its first step to its last",
                do="call fit once, with max_epochs for all epochs; train a second model with another script",
            )
        assert self.lightning_module is not None, "the Trainer has connected its module"
        check_trainer(trainer, self.lightning_module)
        self._training = training = TrainingRun()
        logger = RunLogger(training)
        if training.alone:
            trainer.loggers = [*trainer.loggers, logger]
        else:
            self._prepare_worker(trainer, training, logger)
        trainer.fit_loop = EpochsOfRun(trainer, training, self._files, self._microbatch)

    def _prepare_worker(self, trainer: Any, training: TrainingRun, logger: RunLogger) -> None:
        """Adapt a Trainer in a worker, in which the terminal and the signals belong to the run."""
        trainer.loggers = [logger]
        trainer._signal_connector.register_signal_handlers = _do_nothing
        if trainer.progress_bar_callback is not None:
            trainer.progress_bar_callback.disable()
        run_dir = worker_settings.get_settings().run_dir
        callbacks = [callback for callback in trainer.callbacks if isinstance(callback, ModelCheckpoint)]
        for callback in callbacks:
            if callback.dirpath is None and run_dir is not None:
                callback.dirpath = str(run_dir.root.resolve() / CHECKPOINTS)
        if _has_shards() and any(not callback.save_weights_only for callback in callbacks):
            for callback in callbacks:
                callback.save_weights_only = True
            training.run.print(WEIGHTS_ONLY)

    def all_gather(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return a value that is the same on all workers already.

        Raises:
            BadInput: a step is under way, so it differs.
        """
        if self._training is not None:
            self._training.check_between_steps("all_gather")
        gathered: torch.Tensor = super().all_gather(tensor, *args, **kwargs)
        return gathered

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint of Lightning, between two steps.

        Raises:
            BadInput: a step is under way.
        """
        if self._training is not None:
            self._training.check_between_steps("trainer.save_checkpoint")
        self._files.add(filepath)
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if self._training is not None and "://" not in str(filepath):
            self._partials.look(Path(filepath).parent, self._training.run.step)
            self._partials.remove_older(self._training.run.step)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer for a checkpoint of Lightning.

        Raises:
            BadInput: this worker holds a part of it only.
        """
        if self._training is not None and _has_shards():
            raise BadInput(
                "a checkpoint of Lightning cannot have the optimizer's state with --copies N",
                means="each worker holds a part of it only; the run's own checkpoints have it whole",
                do="pass weights_only=True to trainer.save_checkpoint, or run with --copies all",
            )
        state: dict[str, Any] = super().optimizer_state(optimizer)
        return state

    def remove_checkpoint(self, filepath: str | Path) -> None:
        self._files.remove(filepath)
        super().remove_checkpoint(filepath)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint of Lightning for an evaluation.

        Raises:
            BadInput: the Trainer fits, so the checkpoint would be a second state of the run.
        """
        module = self.lightning_module
        if module is not None and module.trainer.state.fn == TrainerFn.FITTING:
            raise BadInput(
                "Trainer.fit was given ckpt_path",
                means="a run resumes from its own checkpoints, which have the data's position and all state",
                do="resume with elastane run --resume RUN; or begin a run with the weights of the file: "
                "Module.load_from_checkpoint(path)",
            )
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)
        return loaded

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load weights for an evaluation; the trained ones return after it, because the run writes them."""
        if self._training is not None and self.lightning_module is not None and self._trained is None:
            self._trained = {name: t.clone() for name, t in self.lightning_module.state_dict().items()}
        super().load_model_state_dict(checkpoint, strict)

    def end_run(self) -> None:
        """Remove what killed workers have left; no worker of the run writes a checkpoint now."""
        self._partials.remove_all()

    def teardown(self) -> None:
        if self._trained is not None and self.lightning_module is not None:
            self.lightning_module.load_state_dict(self._trained)
            self._trained = None
        optimizers = self.optimizers
        if _has_shards():
            # Lightning moves the state of each optimizer to the CPU, and no worker has a whole one.
            self.optimizers = []
        super().teardown()
        self.optimizers = optimizers


def _has_shards() -> bool:
    """Return whether this worker holds a part of the optimizer's state only, as with ``--copies N``."""
    return worker_settings.get_settings().spec.copies is not None


def _do_nothing() -> None:
    """Do nothing."""


class ElasticLightningTrainer(pl.Trainer):
    """A ``Trainer`` of Lightning that trains in a run; ``strategy=`` may still choose another way.

    Args:
        options: those of ``lightning.Trainer``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"strategy": "elastane"} | options))

    def fit(self, model: Any, *args: Any, **options: Any) -> None:
        """Train a module; see ``lightning.Trainer``.

        Raises:
            BadInput: the module is one of the package ``pytorch_lightning``.
        """
        if any(kind.__module__.startswith("pytorch_lightning.") for kind in type(model).__mro__):
            raise BadInput(
                f"{type(model).__name__} is a module of the package pytorch_lightning",
                means="its classes are others than those of the package lightning, which Elastane trains",
                do="write import lightning.pytorch as pl instead of import pytorch_lightning as pl",
            )
        super().fit(model, *args, **options)
