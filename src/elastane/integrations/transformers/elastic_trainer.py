"""The Trainer itself: a subclass with the loop of a run, and with methods that keep their meaning."""

import functools
import math
import uuid
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
import transformers
from torch.utils.data import IterableDataset, Subset
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    EvalLoopOutput,
    SaveStrategy,
    TrainOutput,
    rotate_checkpoints,
)

from elastane.common.errors import BadInput
from elastane.integrations.transformers.argument_checks import (
    build_argument_error,
    build_resumption_error,
    check_drop_last,
    check_overrides,
    check_training_arguments,
)
from elastane.integrations.transformers.callbacks import check_callbacks, remove_reporters
from elastane.integrations.transformers.evaluation_pass import evaluate_together, is_shareable
from elastane.integrations.transformers.logged_values import MicrobatchValues, select_shared_values
from elastane.integrations.transformers.progress import export_callback_states
from elastane.integrations.transformers.shared_folder import hold_lock, is_written, write_files, write_folder
from elastane.integrations.transformers.training_loop import TrainingLoop
from elastane.integrations.transformers.training_plan import SampleOrder, TrainingPlan
from elastane.run.worker.data.data_continuity import check_same_epochs
from elastane.run.worker.gangs.gang_checks import OWN_LOOP, refuse_in_gang
from elastane.run.worker.session import get_run
from elastane.run.worker.worker_settings import get_settings


class ElasticTrainer(transformers.Trainer):
    """A ``transformers.Trainer`` that trains in a run, with the same bytes at any number of workers.

    Under plain ``python`` it trains alone, with the losses of ``transformers.Trainer`` on one device. To make
    a subclass elastic, add this class after it: ``class Mine(TheirTrainer, ElasticTrainer)``.

    Attributes:
        values: numbers that a subclass collects in microbatches.
        divides_loss: see `training_plan.is_divided`; None: not measured: each batch is a virtual rank.

    Raises:
        BadInput: an argument cannot be kept exactly.
    """

    model: Any
    optimizer: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        self._settings, self._run = get_settings(), get_run()
        spec, resumed = self._settings.spec, self._settings.resumed
        refuse_in_gang(
            "the Trainer of transformers",
            "accelerate would divide batches and model by a world of its own, also with fsdp, and average "
            "gradients in an order that depends on it",
            spec.processes,
            instead=OWN_LOOP,
        )
        given = options.get("args", args[1] if len(args) > 1 else None)
        if given is not None:
            check_training_arguments(given)
        self.values = MicrobatchValues()
        self.divides_loss: bool | None = None
        self._is_alone = self._settings.run_dir is None
        self._begins = self._is_alone or (resumed is None and self._settings.worker < spec.start)
        first = resumed.first_worker if resumed is not None else 0
        self._is_zero = self._settings.worker == first or self._is_alone
        self._loop: TrainingLoop | None = None
        self._loads_best = self._beats = False
        self._last_save = (-1, 0)
        super().__init__(*args, **options)
        check_training_arguments(self.args)
        check_overrides(self, ElasticTrainer)
        if not self._is_alone:
            remove_reporters(self, self._run)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train as ``transformers.Trainer`` does; see there."""
        if self._loop is not None or self._run.is_prepared:
            raise BadInput(
                "trainer.train() was called twice in one run",
                means="a run trains one model, from its first step to its last",
                do="start a second run for a second training, from the model that this one writes",
            )
        if resume_from_checkpoint:
            self._check_resumption(resume_from_checkpoint)
        return super().train(trial=trial, ignore_keys_for_eval=ignore_keys_for_eval)

    def _check_resumption(self, checkpoint: str | bool) -> None:
        if self._settings.resumed is not None:
            self._run.print("the run resumes from its own checkpoint, which is newer than", checkpoint)
        elif self._begins:
            raise build_resumption_error(checkpoint, self.args.output_dir or ".")
        # A script that looks for the newest checkpoint finds one of this run in a worker that joins.

    def hyperparameter_search(self, *_args: Any, **_options: Any) -> NoReturn:
        """Refuse a search: a run trains one model."""
        raise BadInput(
            "trainer.hyperparameter_search() was called in a run",
            means="a run trains one model, and the search would train many in one process",
            do="start one run for each trial: elastane submit script.py --learning-rate 1e-4",
        )

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        args = self.args
        loader: Any = self.get_train_dataloader()
        check_train_loader(args, loader)
        epochs, per_epoch, _, samples, _, _, steps = self.set_initial_training_values(args, loader)
        plan = self._build_plan(len(loader.dataset), steps)
        self._init_training_state(steps, per_epoch, epochs, None, trial)
        self.set_process_zero(())
        check_callbacks(self)
        model = self._prepare_model(plan)
        self.callback_handler.train_dataloader = loader
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self._initial_num_input_tokens_seen = self._initial_global_step = self._globalstep_last_logged = 0
        self._tr_loss = torch.tensor(0.0, device=args.device)
        self._total_loss_scalar = 0.0
        loop = self._loop = TrainingLoop(
            self, self._run, plan, ignore_keys=ignore_keys_for_eval, begins=self._begins
        )
        self.model.train()
        self.control = self.callback_handler.on_train_begin(args, self.state, self.control)
        if args.eval_on_start and self._begins:
            self._evaluate(trial, ignore_keys_for_eval, skip_scheduler=True)
        loop.train(
            model,
            self._run.steps(
                as_dataset(loader.dataset),
                global_batch=plan.global_batch,
                microbatch=plan.batch,
                until=plan.steps,
                collate=loader.collate_fn,
                loaders=args.dataloader_num_workers,
                prefetch=args.dataloader_prefetch_factor or 2,
                order=SampleOrder(loader, plan.batch, args.data_seed or args.seed),
            ),
        )
        with hold_lock(Path(args.output_dir), self._beat):
            return self._finalize_training(trial, samples, loop.start_s)

    def _build_plan(self, samples: int, steps: int) -> TrainingPlan:
        spec, args = self._settings.spec, self.args
        total = args.train_batch_size * args.gradient_accumulation_steps
        ranks = spec.virtual_ranks or args.gradient_accumulation_steps
        if not self._is_alone and ranks < spec.least_ranks:
            raise BadInput(
                f"a step of this Trainer has {ranks} virtual ranks, too few for {spec.least_ranks} workers: "
                f"gradient_accumulation_steps={args.gradient_accumulation_steps}",
                means="each worker computes at least one virtual rank of every step",
                do=f"cut the global batch of {total} finer: elastane run --virtual-ranks N; or raise "
                "gradient_accumulation_steps, and lower per_device_train_batch_size alike",
            )
        check_same_epochs(self._settings.origin, total, samples)
        return TrainingPlan(
            samples=samples,
            batch=args.train_batch_size,
            accumulation=args.gradient_accumulation_steps,
            virtual_ranks=ranks,
            steps=steps,
        )

    def _prepare_model(self, plan: TrainingPlan) -> torch.nn.Module:
        """Create the optimizer and the schedule, and hand everything over to the run."""
        args, copies = self.args, self._settings.spec.copies
        if copies is not None and args.save_strategy != SaveStrategy.NO and not args.save_only_model:
            raise build_argument_error(
                f"save_strategy={str(args.save_strategy)!r} in a run with --copies {copies}",
                "no worker has the whole state of the optimizer, which a checkpoint of the Trainer has",
                "pass save_only_model=True; the checkpoints of the run have the whole state",
            )
        self.create_optimizer()
        model = self.accelerator.prepare_model(self.model, evaluation_mode=True)
        self.model_wrapped = model
        self.create_scheduler(num_training_steps=plan.steps)
        clips = args.max_grad_norm is not None and args.max_grad_norm > 0
        if clips and copies is None:
            # The Trainer's own clipping, on the whole gradient, so that its bits are those of the Trainer.
            self.optimizer.register_step_pre_hook(functools.partial(clip_gradient, self))
        limit = args.max_grad_norm if clips and copies is not None else math.inf
        scaler = getattr(self.accelerator, "scaler", None)
        self._run.prepare(
            self.model, self.optimizer, scheduler=self.lr_scheduler, scaler=scaler, clip_grad_norm=limit
        )
        return model

    def end_training(self) -> None:
        """Do what belongs to the training after its last step; the run still includes the change."""
        assert self._loop is not None, "a training ends in its loop"
        mean = (self._total_loss_scalar + self._tr_loss.item()) / max(self.state.global_step, 0.001)
        self._loop.logged["train_loss"] = mean
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._loads_best = True
            self._load_best_model()
            self._loads_best = False

    def _load_best_model(self) -> None:
        # At the end of the training, between two steps: later the run would not contain it.
        if self._loads_best:
            super()._load_best_model()

    # -- evaluation ------------------------------------------------------------------------------------------

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate as ``transformers.Trainer`` does; the workers share the batches."""
        evaluate = functools.partial(
            super().evaluation_loop,
            description=description,
            prediction_loss_only=prediction_loss_only,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        is_between = self._loop is not None and self._loop.is_between_steps
        if is_between and is_shareable(self, dataloader):
            only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
            together = evaluate_together(
                self, self._run, dataloader, ignore_keys, prediction_loss_only=bool(only), evaluate=evaluate
            )
            if together is not None:
                return together
        self._beats = is_between
        try:
            return evaluate(dataloader)
        finally:
            self._beats = False

    def _prepare_inputs(self, inputs: Any) -> Any:
        if self._beats:
            self._beat()
        return super()._prepare_inputs(inputs)

    def _beat(self) -> None:
        self._run.show_progress()

    # -- records ---------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log values to the callbacks, to the history and to the ledger of the run."""
        super().log(logs, start_time)
        if self._loop is not None:
            self._loop.record(select_shared_values(logs))

    def is_world_process_zero(self) -> bool:
        """Return whether this worker is the first of those that made the last step."""
        return self._is_zero

    def is_local_process_zero(self) -> bool:
        """Return the same as `is_world_process_zero`."""
        return self._is_zero

    def set_process_zero(self, workers: tuple[int, ...]) -> None:
        """Set which of the workers of the last step is process zero; none: no step has been made."""
        if workers and not self._is_alone:
            self._is_zero = min(workers) == self._settings.worker
        self.state.is_world_process_zero = self.state.is_local_process_zero = self._is_zero

    # -- folders ---------------------------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model once for all workers, so that ``from_pretrained`` loads it."""
        if _internal_call and output_dir is not None:
            super().save_model(output_dir, _internal_call=True)
            return
        folder = Path(output_dir or self.args.output_dir or ".")
        stamp = self._make_stamp(folder)
        with hold_lock(folder, self._beat):
            if not is_written(folder, stamp):
                write_files(
                    folder,
                    stamp,
                    lambda path: transformers.Trainer.save_model(self, str(path), _internal_call=True),
                )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run_dir, state = Path(self._get_output_dir(trial=trial)), self.state
        folder = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self.store_flos()
        if self.args.save_strategy != SaveStrategy.NO and state.best_global_step:
            best = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
            if best == folder or best.exists():
                state.best_model_checkpoint = str(best)
        export_callback_states(self)
        stamp = self._make_stamp(folder)
        with hold_lock(run_dir, self._beat):
            if is_written(folder, stamp):
                return
            write_folder(folder, stamp, self._write_checkpoint)
            rotate_checkpoints(
                output_dir=str(run_dir),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=state.best_model_checkpoint,
                use_mtime=True,
            )

    def _write_checkpoint(self, folder: Path) -> None:
        self.save_model(str(folder), _internal_call=True)
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(folder))
            self._save_scaler(str(folder))
            self._save_rng_state(str(folder))
        self.state.save_to_json(str(folder / "trainer_state.json"))

    def _make_stamp(self, folder: Path) -> str:
        """Return a text that is the same on all workers for this save, and differs from that of any other."""
        step, count = self._last_save
        self._last_save = self.state.global_step, count + 1 if step == self.state.global_step else 1
        if self._settings.run_dir is None:
            return uuid.uuid4().hex
        times = self._settings.resumed.times if self._settings.resumed is not None else 0
        return f"{self._settings.run_dir.root} {times} {folder.name} {self._last_save}"


def clip_gradient(trainer: ElasticTrainer, _optimizer: Any, _args: Any, _options: Any) -> None:
    """Clip the gradient of a step as the Trainer does, before its optimizer steps."""
    # A worker that joins runs the optimizer without gradients until it has its state.
    if any(parameter.grad is not None for parameter in trainer.model.parameters()):
        trainer._clip_grad_norm(trainer.model)


def as_dataset(samples: Any) -> Any:
    """Return samples as a dataset; a list of dicts with tensors would look like a list of batches."""
    is_plain = isinstance(samples, list | tuple)
    return Subset(cast("Any", samples), range(len(samples))) if is_plain else samples


def check_train_loader(args: Any, loader: Any) -> None:
    """Refuse data in an order that a run cannot reproduce."""
    if isinstance(loader.dataset, IterableDataset):
        raise build_argument_error(
            f"a train_dataset without positions ({type(loader.dataset).__name__})",
            "a run divides the samples of each step among its workers by position",
            "pass a dataset with a length, such as a datasets.Dataset; or train with elastane.join() and "
            "run.steps, which reads streams in shards",
        )
    check_drop_last(args, len(loader.dataset))
