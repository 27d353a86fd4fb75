"""The loop over the steps of an epoch, in place of Lightning's loop over its batches."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer import call

from elastane.common.errors import BadInput
from elastane.integrations.lightning.logged_values import TRAINING_STEP, MicrobatchMetrics
from elastane.integrations.lightning.trainer_checks import ModuleContainers
from elastane.integrations.lightning.training_run import TrainingRun
from elastane.run.worker.step import TrainingStep
from elastane.run.worker.values import describe_value


class StepsOfEpoch(_TrainingEpochLoop):
    """Makes the steps of an epoch; hooks, logs, schedules and validation follow each step, on all workers.

    Args:
        theirs: Lightning's own loop; this one takes over its settings and its validation loop.

    Attributes:
        own_results: the results of the epoch, also while microbatches are computed.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        theirs: _TrainingEpochLoop,
        training: TrainingRun,
        values: MicrobatchMetrics,
    ) -> None:
        super().__init__(trainer, theirs.min_steps, theirs.max_steps)
        self.val_loop = theirs.val_loop
        self.own_results = self._results
        self._training, self._values = training, values
        self._hook_before: str | None = None
        self._containers = ModuleContainers(trainer.lightning_module)

    @property
    def done(self) -> bool:
        return self._training.exhausted or self._training.cut_short or super().done

    @property
    def last_hook(self) -> str | None:
        """The hook that logged last, as every worker knows it: in a step, the one before the step.

        Another thread reads and sets it for `TrainerState` while microbatches of this worker set Lightning's.
        """
        return self._hook_before if self._training.computing else self.trainer._logger_connector._current_fx

    @last_hook.setter
    def last_hook(self, hook: str | None) -> None:
        self._hook_before = self.trainer._logger_connector._current_fx = hook

    def on_run_start(self, data_fetcher: Any) -> None:
        """Do nothing: the run loads the data."""

    def advance(self, data_fetcher: Any) -> None:
        """Make one step of the run, and then do everything that follows a batch in Lightning's loop.

        Raises:
            StopIteration: the run has made its last step.
        """
        step = self._training.take()
        if step is None:
            raise StopIteration
        self._values.begin_step()
        self._results = self._values  # type: ignore[assignment]
        self._hook_before = self.last_hook
        self._training.computing = True
        try:
            for batch in step:
                self._compute_microbatch(step, batch)
        finally:
            self.trainer._logger_connector._current_fx = self._hook_before
            self._training.computing = False
            self._results = self.own_results
        self._complete_step(step)

    def _compute_microbatch(self, step: TrainingStep, batch: Any) -> None:
        trainer = self.trainer
        module = trainer.lightning_module
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)
        kwargs = self._build_kwargs(OrderedDict(), batch, self.batch_progress.current.ready)
        self._containers.begin()
        self._values.begin_microbatch()
        stops = trainer.should_stop
        output = call._call_strategy_hook(trainer, TRAINING_STEP, *kwargs.values())
        step.backward(_find_loss(output))
        self._containers.check()
        if trainer.should_stop != stops:
            raise BadInput(
                "training_step set trainer.should_stop",
                means="the other workers, which compute other microbatches, would go on",
                do="set it in on_train_batch_end or a later hook, from a value that all workers have, such "
                "as outputs['loss'] there",
            )

    def _complete_step(self, step: TrainingStep) -> None:
        trainer, progress = self.trainer, self.batch_progress
        connector = trainer._logger_connector
        batches = min(
            trainer.accumulate_grad_batches, int(trainer.num_training_batches) - progress.current.ready
        )
        _add(progress, batches, "ready")
        progress.is_last_batch = progress.current.ready >= trainer.num_training_batches
        connector.on_batch_start(None)
        index = self.batch_idx
        call._call_callback_hooks(trainer, "on_train_batch_start", None, index)
        if call._call_lightning_module_hook(trainer, "on_train_batch_start", None, index) == -1:
            raise BadInput(
                "on_train_batch_start returned -1, which ends an epoch early",
                means="a run reads every sample once per epoch",
                do="set trainer.should_stop = True to end the training, or leave samples out of the dataset",
            )
        _add(progress, batches, "started")
        self._log_means(step)
        stepped = self.automatic_optimization.optim_progress.optimizer.step
        stepped.increment_ready()
        stepped.increment_completed()
        _add(progress, batches, "processed")
        self.update_lr_schedulers("step", update_plateau_schedulers=False)
        if self._num_ready_batches_reached():
            self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        outputs = {"loss": torch.tensor(step.loss)}
        call._call_callback_hooks(trainer, "on_train_batch_end", outputs, None, index)
        call._call_lightning_module_hook(trainer, "on_train_batch_end", outputs, None, index)
        connector.on_batch_end()
        _add(progress, batches, "completed")
        connector.update_train_step_metrics()

    def _log_means(self, step: TrainingStep) -> None:
        for key, options in self._values.complete_step(step.means).items():
            name, prog_bar, logger, on_step, on_epoch = options
            self.own_results.log(
                TRAINING_STEP,
                name,
                torch.tensor(step.means[key]),
                prog_bar=prog_bar,
                logger=logger,
                on_step=on_step,
                on_epoch=on_epoch,
                sync_dist_fn=self.trainer.strategy.reduce,
                batch_size=step.samples,
            )
            self.trainer._logger_connector._current_fx = TRAINING_STEP

    def _should_check_val_fx(self, data_fetcher: Any) -> bool:
        """Return whether a validation is due in or at the end of the batches of the step just made."""
        trainer, every = self.trainer, self.trainer.val_check_batch
        if super()._should_check_val_fx(data_fetcher):
            return True
        if trainer.accumulate_grad_batches == 1 or not self._should_check_val_epoch() or not every:
            return False
        if every == float("inf"):
            return False
        progress = (
            self.batch_progress.total
            if trainer.check_val_every_n_epoch is None
            else self.batch_progress.current
        )
        before = progress.ready - min(trainer.accumulate_grad_batches, progress.ready)
        return int(progress.ready // every) > int(before // every)


def _add(progress: Any, batches: int, counter: str) -> None:
    for tracker in (progress.total, progress.current):
        setattr(tracker, counter, getattr(tracker, counter) + batches)


def _find_loss(output: Any) -> Any:
    """Return the loss in the result of a training step."""
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if loss is None:
        found = "a dict without 'loss'" if isinstance(output, Mapping) else describe_value(output)
        raise BadInput(
            f"training_step returned {found}",
            means="a microbatch without a loss would be left out of the step, on one worker only",
            do="return the loss of every batch; leave samples out in the dataset, or give them weight 0",
        )
    return loss
