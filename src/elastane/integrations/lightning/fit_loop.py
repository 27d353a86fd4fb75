"""The loop over the epochs of a run, in place of Lightning's fit loop."""

from typing import Any

from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.data_connector import _request_dataloader
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from elastane.common.errors import BadInput
from elastane.integrations.lightning.checkpoint_files import CheckpointNames
from elastane.integrations.lightning.epoch_loop import StepsOfEpoch
from elastane.integrations.lightning.logged_values import MicrobatchMetrics
from elastane.integrations.lightning.trainer_state import TrainerState
from elastane.integrations.lightning.training_data import (
    TrainingData,
    choose_microbatch,
    count_batches,
    limit_data,
    read_training_loader,
)
from elastane.integrations.lightning.training_run import TrainingRun


class EpochsOfRun(_FitLoop):
    """Trains the epochs of a run, with Lightning's hooks between the steps.

    Args:
        trainer: the Trainer; this loop replaces its own fit loop.
        microbatch: the samples of a virtual rank; None: not given.
    """

    def __init__(
        self, trainer: Any, training: TrainingRun, files: CheckpointNames, microbatch: int | None
    ) -> None:
        theirs = trainer.fit_loop
        super().__init__(trainer, theirs.min_epochs, theirs.max_epochs)
        self._training, self._files, self._asked = training, files, microbatch
        self._values = MicrobatchMetrics(training.run)
        self._data: TrainingData | None = None
        self._data_source = theirs._data_source
        self.epoch_loop: StepsOfEpoch = StepsOfEpoch(trainer, theirs.epoch_loop, training, self._values)

    @property
    def done(self) -> bool:
        return self._training.exhausted or self._training.cut_short or super().done

    def setup_data(self) -> None:
        """Read the training loader; a schedule may ask for the number of steps before the run begins."""
        if self._combined_loader is not None:
            return
        loader = _request_dataloader(self._data_source)
        data = read_training_loader(loader)
        self.max_batches = batches = count_batches(data, self.trainer.limit_train_batches)
        self._data = limit_data(data, batches, self.trainer.accumulate_grad_batches)
        self._combined_loader = CombinedLoader(loader, "max_size_cycle")
        self._data_fetcher = _NoFetcher()  # type: ignore[assignment]
        self.trainer.val_check_batch = self._choose_validation_interval(batches)

    def on_run_start(self) -> None:
        """Hand the model over to the run, and run the hooks of the training's start."""
        assert self._data is not None, "the data is set up before"
        self._open(self._data, self._count_steps())
        super().on_run_start()

    def _choose_validation_interval(self, batches: int) -> int | float:
        """Return the number of batches after which Lightning validates."""
        every = self.trainer.val_check_interval
        if isinstance(every, int):
            if every > batches and self.trainer.check_val_every_n_epoch is not None:
                raise BadInput(
                    f"Trainer(val_check_interval={every}): an epoch has {batches} batches",
                    means="no validation would ever run",
                    do="pass a smaller number; or check_val_every_n_epoch=None, which counts over epochs",
                )
            return every
        return max(1, int(batches * float(every or 1.0)))

    def _count_steps(self) -> int:
        """Return the number of steps until ``max_epochs`` or ``max_steps``."""
        per_epoch = -(-int(self.max_batches) // self.trainer.accumulate_grad_batches)
        epochs = self.max_epochs if self.max_epochs is not None else -1
        limits = [
            limit for limit in (epochs * per_epoch if epochs >= 0 else -1, self.max_steps) if limit >= 0
        ]
        if not limits:
            raise BadInput(
                "the Trainer has no limit: max_epochs=-1 and max_steps=-1",
                means="a run has a last step, by which it plans and reports",
                do="pass max_epochs or max_steps",
            )
        return min(limits)

    def _open(self, data: TrainingData, steps: int) -> None:
        trainer: Any = self.trainer
        strategy = trainer.strategy
        accumulated = trainer.accumulate_grad_batches
        self._training.prepare(
            trainer.lightning_module,
            strategy.optimizers[0],
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            clip_grad_norm=trainer.gradient_clip_val or None,
        )
        run = self._training.run
        for number, config in enumerate(strategy.lr_scheduler_configs):
            run.keep[f"lightning_schedule_{number}"] = config.scheduler
        self._files.adopt(trainer.callbacks)
        run.keep["lightning"] = TrainerState(trainer, self._values, self._files)
        self._training.open(
            data,
            global_batch=data.batch * accumulated,
            microbatch=choose_microbatch(data.batch, accumulated, self._asked),
            until=steps,
        )

    def on_advance_end(self) -> None:
        """Run the hooks of the epoch's end, unless the run was stopped inside the epoch."""
        if self._training.step is None:
            return
        if self._training.cut_short and not self.epoch_loop.batch_progress.is_last_batch:
            return
        super().on_advance_end()

    def on_run_end(self) -> None:
        """Run the hooks of the training's end, unless the run was stopped before, and end the run."""
        if self._training.cut_short:
            call._call_strategy_hook(self.trainer, "on_train_end")
        else:
            super().on_run_end()
        self._training.finish("the Trainer stopped it: should_stop was set")
        strategy: Any = self.trainer.strategy
        strategy.end_run()


class _NoFetcher:
    """Stands in for the fetcher of batches, which the run itself loads."""

    fetched = 0

    def __iter__(self) -> Any:
        return self

    def teardown(self) -> None:
        """Do nothing."""
