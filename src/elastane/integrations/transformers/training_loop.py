"""The loop of a Trainer over the steps of a run, in place of its own loop."""

import copy
import json
import time
from typing import TYPE_CHECKING, Any

import torch

from elastane.common.errors import BadInput
from elastane.integrations.transformers.callbacks import CallbackWatch, build_change_warning
from elastane.integrations.transformers.logged_values import name_for_ledger
from elastane.integrations.transformers.progress import describe_progress, restore_progress
from elastane.integrations.transformers.training_plan import LossScale, TrainingPlan, choose_scale, is_divided
from elastane.run.worker.data.determinism import preserve_generators
from elastane.run.worker.reporter import get_reporter
from elastane.run.worker.session import Run
from elastane.run.worker.step import TrainingStep
from elastane.run.worker.worker_settings import get_settings

if TYPE_CHECKING:
    from elastane.integrations.transformers.elastic_trainer import ElasticTrainer

PROGRESS, HISTORY = "transformers.progress", "transformers.log_history"
"""Names in ``run.keep``."""


class TrainingLoop:
    """The training of one Trainer in one run.

    All workers execute the same methods of the Trainer between two steps. Inside a step each worker computes
    other microbatches; their losses and other numbers are gathered, so that the sums are the same everywhere.

    Args:
        ignore_keys: outputs of the model that evaluations ignore.
        begins: the run begins with this worker.

    Attributes:
        is_between_steps: all workers execute the code that runs now.
        logged: values of the logs since the last step, for the ledger.
    """

    def __init__(
        self,
        trainer: "ElasticTrainer",
        run: Run,
        plan: TrainingPlan,
        *,
        ignore_keys: list[str] | None,
        begins: bool,
    ) -> None:
        self._trainer, self._run, self._plan = trainer, run, plan
        self._ignore_keys = ignore_keys
        self._follows = not begins
        self._step: TrainingStep | None = None
        self._begun_step = 0
        self._divisor: float = 1
        self._measured: list[float] | None = None
        self._kept: Any = None
        self._history: list[str] = []
        self.start_s = time.time()
        self.is_between_steps = False
        self.logged: dict[str, float] = {}

    def train(self, model: torch.nn.Module, steps: Any) -> None:
        """Make the steps of ``run.steps`` with the model that the Trainer prepared for mixed precision."""
        trainer = self._trainer
        backward, trainer.accelerator.backward = trainer.accelerator.backward, self._backward
        watch = CallbackWatch(trainer.callback_handler.callbacks)
        try:
            self._keep()
            for step in steps:
                self._step = step
                trainer.model.train()
                if not self._follows:
                    self._begin_step(trainer.state.global_step + 1)
                for inputs in step:
                    self._follow()
                    self._compute(model, inputs)
                self._follow()
                if self._follows:
                    # An attempt without a checkpoint begins again at the first step.
                    self._follows = False
                    self._begin_step(step.number)
                self.is_between_steps = True
                self._end_step(model)
                self.is_between_steps = False
                self._warn_of_changes(watch)
        finally:
            trainer.accelerator.backward = backward

    def record(self, values: dict[str, float]) -> None:
        """Record the values of a log, which are the same on every worker, for the ledger and for joiners."""
        self.logged.update({name_for_ledger(name): value for name, value in values.items()})
        entry = {**values, "step": self._trainer.state.global_step}
        # Sorted: a subclass may log in an order that depends on when its process has joined.
        self._history.append(json.dumps(entry, sort_keys=True))

    # -- inside a step -------------------------------------------------------------------------------------

    def _backward(self, loss: torch.Tensor, **_options: Any) -> None:
        assert self._step is not None, "a microbatch belongs to a step"
        if self._measured is not None:
            self._measured.append(loss.item())
            return
        self._step.backward(loss if self._divisor == 1 else loss / self._divisor, summed=True)

    def _compute(self, model: torch.nn.Module, inputs: Any) -> None:
        """Compute a microbatch as the Trainer does, and gather its numbers."""
        trainer, plan, step = self._trainer, self._plan, self._step
        assert step is not None, "a microbatch belongs to a step"
        tokens_before = trainer.state.num_input_tokens_seen
        items = self._count_items(step, inputs)
        if trainer.divides_loss is None and step.rehearses and plan.cuts_batches:
            trainer.divides_loss = self._measure_division(model, inputs)
        divided = trainer.divides_loss is not False
        batches, share = plan.count_batches(step.number), plan.compute_share(step.number, step.virtual_rank)
        scale = choose_scale(batches, share, divided=divided)
        self._divisor = scale.divisor
        trainer.values.begin()
        loss = self._train_microbatch(model, inputs, items, scale)
        values = trainer.values.end()
        trainer._track_num_input_tokens(inputs)
        tokens = trainer.state.num_input_tokens_seen - tokens_before
        trainer.state.num_input_tokens_seen = tokens_before
        flos = float(trainer.floating_point_ops(inputs))
        step.gathered.add(loss=loss / scale.divisor, flos=flos, tokens=tokens, **values)

    def _train_microbatch(
        self, model: torch.nn.Module, inputs: Any, items: torch.Tensor | None, scale: LossScale
    ) -> torch.Tensor:
        trainer: Any = self._trainer
        trainer.current_gradient_accumulation_steps = scale.accumulation
        if items is not None and scale.divisor != 1:
            items = items / scale.divisor
        loss: torch.Tensor = trainer.training_step(model, inputs, items)
        return loss

    def _count_items(self, step: TrainingStep, inputs: Any) -> torch.Tensor | None:
        """Return the number of items in the whole step, by which the loss is divided; None: not needed."""
        own = self._count_in_batch(inputs)
        if own is None:
            return None
        total = step.count(lambda batch: 0.0 if (found := self._count_in_batch(batch)) is None else found)
        return torch.full_like(torch.as_tensor(own), total)

    def _count_in_batch(self, batch: Any) -> Any:
        """Return the number of items in a microbatch; None: not needed."""
        trainer = self._trainer
        return trainer._get_num_items_in_batch([batch], trainer.args.device)

    def _measure_division(self, model: torch.nn.Module, inputs: Any) -> bool:
        """Compute the loss of a microbatch for two numbers of items and batches; see `is_divided`."""
        trainer, step = self._trainer, self._step
        assert step is not None, "a microbatch belongs to a step"
        items = self._count_in_batch(inputs)
        if items is not None:
            # A microbatch without items has a loss of 0 for any number of them.
            batches: list[Any] = []

            def collect(batch: Any) -> float:
                batches.append(batch)
                return 0.0

            step.count(collect)
            inputs = max(batches, key=lambda batch: self._count_in_batch(batch) or 0)
            items = self._count_in_batch(inputs)
        losses: list[float] = []
        self._measured = losses
        trainer.values.begin()
        try:
            for factor in (1, 2):
                with preserve_generators():
                    scaled = None if items is None else items * factor
                    self._train_microbatch(model, copy.deepcopy(inputs), scaled, LossScale(factor, 1))
        finally:
            self._measured = None
            trainer.values.end()
        return is_divided(*losses)

    def _follow(self) -> None:
        """Take over the progress of the run, if another worker has made it."""
        kept = self._run.keep[PROGRESS]
        if kept is self._kept:
            return
        self._kept = kept
        trainer = self._trainer
        restore_progress(trainer, kept)
        origin = get_settings().origin
        if origin is not None and trainer.state.global_step == origin.step:
            # The run from which this one began may have ended there.
            trainer.control.should_training_stop = False
        self._history = self._run.keep[HISTORY].splitlines()
        trainer.state.log_history = [json.loads(line) for line in self._history]
        self._follows = False
        self._begin_step(trainer.state.global_step + 1)

    # -- between two steps -----------------------------------------------------------------------------------

    def _begin_step(self, number: int) -> None:
        trainer = self._trainer
        if self._begun_step == number:
            return
        self._begun_step = number
        handler, args = trainer.callback_handler, trainer.args
        if self._plan.begins_epoch(number):
            trainer.control = handler.on_epoch_begin(args, trainer.state, trainer.control)
        trainer.control = handler.on_step_begin(args, trainer.state, trainer.control)

    def _end_step(self, model: torch.nn.Module) -> None:
        """Do what the Trainer does after a step: log, evaluate, save, and decide whether to go on."""
        trainer, step = self._trainer, self._step
        assert step is not None, "a step has ended"
        args, handler = trainer.args, trainer.callback_handler
        # Evaluations leave the model in another mode.
        trainer.model.train()
        self._add_numbers(step)
        trainer.set_process_zero(step.workers)
        for _ in range(self._plan.count_batches(step.number) - 1):
            trainer.control = handler.on_substep_end(args, trainer.state, trainer.control)
        trainer.control = handler.on_optimizer_step(args, trainer.state, trainer.control)
        trainer.state.global_step = step.number
        trainer.state.epoch = self._plan.compute_epoch(step.number)
        trainer.control = handler.on_step_end(args, trainer.state, trainer.control)
        self._log_save_evaluate(model)
        if trainer.control.should_epoch_stop and not step.ended_epoch:
            self._check_epoch_end()
        stops = trainer.control.should_training_stop
        if step.ended_epoch or stops:
            trainer.control = handler.on_epoch_end(args, trainer.state, trainer.control)
            self._log_save_evaluate(model)
            stops = trainer.control.should_training_stop
        if stops and not step.last:
            self._run.stop("a callback of the Trainer stopped it")
        if (step.last and not step.cut_short) or stops:
            trainer.end_training()
        self._keep()
        if self.logged:
            self._run.log(**self.logged)
            self.logged = {}

    def _warn_of_changes(self, watch: CallbackWatch) -> None:
        """Warn once in a run of each callback that changes what no other worker receives."""
        reporter = get_reporter()
        for kind, attribute in watch.find_changed():
            if reporter is not None and not reporter.alone:
                text = build_change_warning(kind, attribute)
                reporter.warn(f"callback-{kind}", text, step=self._trainer.state.global_step)

    def _add_numbers(self, step: TrainingStep) -> None:
        trainer, gathered = self._trainer, step.gathered
        for loss in gathered["loss"]:
            trainer._tr_loss += loss
        flos: Any = sum(gathered["flos"])
        trainer.current_flos += flos
        trainer.state.num_input_tokens_seen += int(sum(gathered["tokens"]))
        others = {name: values for name, values in gathered.items() if name not in {"loss", "flos", "tokens"}}
        trainer.values.add("train", others)

    def _log_save_evaluate(self, model: torch.nn.Module) -> None:
        trainer, step = self._trainer, self._step
        assert step is not None, "a step has ended"
        norm = None if step.norm is None else torch.tensor(step.norm)
        rate = step.learning_rates[0] if step.learning_rates else None
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss,
            norm,
            model,
            None,
            self._plan.find_epoch(step.number),
            self._ignore_keys,
            self.start_s,
            learning_rate=rate,
        )

    def _check_epoch_end(self) -> None:
        raise BadInput(
            "a callback set control.should_epoch_stop before the end of an epoch",
            means="the rest of the epoch would be skipped, and a run trains on each sample of an epoch once",
            do="set control.should_training_stop to end the training, or train on fewer samples",
        )

    def _keep(self) -> None:
        """Keep the progress for workers that join, and for an attempt that resumes."""
        keep = self._run.keep
        keep[PROGRESS] = describe_progress(self._trainer)
        keep[HISTORY] = "\n".join(self._history)
        # RunKeep returns the object itself until another worker's value replaces it.
        self._kept = keep._values[PROGRESS]
