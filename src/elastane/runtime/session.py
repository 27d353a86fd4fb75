"""What a training script meets: `join`, `prepare`, `steps`, `evaluate`, `keep`, `stop`."""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import IterableDataset

from elastane.api.errors import BadInput
from elastane.api.heartbeat_file import Phase
from elastane.api.records import Digest, EventLine
from elastane.api.spec import CheckpointPolicy
from elastane.runtime import worker_settings
from elastane.runtime.artifacts import check_artifact_name, write_artifact
from elastane.runtime.data.batch_sources import (
    BatchPlan,
    BatchSource,
    Collate,
    MapBatchSource,
    MapDataset,
    make_plan,
    measure_length,
    seed_everything,
)
from elastane.runtime.data.dataset_checks import check_collate, check_count, check_dataset, count_batch_rows
from elastane.runtime.data.fingerprint import digest_dataset
from elastane.runtime.data.streams import Factory, StreamBatchSource, check_stream, open_stream
from elastane.runtime.evaluation import Evaluation
from elastane.runtime.heartbeat import Heartbeat
from elastane.runtime.reporter import Reporter, get_reporter
from elastane.runtime.state import devices
from elastane.runtime.state.run_keep import RunKeep
from elastane.runtime.step import TrainingStep
from elastane.runtime.trainer import Trainer
from elastane.runtime.values import parse_values

STEP_LOSS = "loss"
"""Among the metrics of a checkpoint, the loss of its step."""

AnyModule = TypeVar("AnyModule", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)


def join() -> "Run":
    """Take part in the run this process belongs to; alone, under ``elastane run``, on any engine.

    Pins the number of intra-op threads and seeds every generator, so that the model built next begins with
    the same values everywhere.
    """
    here = worker_settings.get_settings()
    if get_reporter() is not None:
        raise BadInput(
            "elastane.join() was called twice",
            means="a worker takes part in its run once",
            do="call it once, and pass the run that it returns to whatever needs it",
        )
    torch.set_num_threads(here.spec.threads)
    devices.pin_libraries()
    # This one also reaches accelerators that are not in use yet.
    torch.manual_seed(here.spec.seed)
    seed_everything(here.spec.seed)
    return Run(here)


class Run:
    """One worker's part in a run; made by `join`.

    Attributes:
        keep: what the script keeps by name: the same on every worker, and given to those who join.
    """

    def __init__(self, here: worker_settings.WorkerSettings) -> None:
        self._here = here
        beats = here.run_dir.beats if here.run_dir else None
        self._heartbeat = Heartbeat(beats, here.worker)
        self._heartbeat.beat(Phase.STARTING)
        self._reporter = Reporter(here)
        self._training: Trainer | None = None
        self.keep = RunKeep()
        self._step: TrainingStep | None = None
        self._ending = ""
        self._begun = self._finished = False
        self._printed = (0, 0)

    def prepare(
        self,
        model: AnyModule,
        optimizer: AnyOptimizer,
        *,
        scheduler: LRScheduler | None = None,
        scaler: GradScaler | None = None,
        clip_grad_norm: float | None = None,
    ) -> tuple[AnyModule, AnyOptimizer]:
        """Take charge of the model's state; returns the same objects.

        Args:
            model: on the CPU or on one CUDA device; on the CPU its parameters are moved into shared memory,
                in place.
            optimizer: any of ``torch.optim`` with ``--copies all``, an elementwise one with ``--copies N``.
            scheduler: stepped once after every training step; a ``ReduceLROnPlateau``, which needs a
                figure for that, by the script, between steps.
            scaler: for fp16; scales every loss, takes the scale out of the gradients and moves it. Whether
                a step is skipped is the same on every worker.
            clip_grad_norm: largest norm of the whole gradient, as ``clip_grad_norm_`` has it.

        Raises:
            BadInput: a model or optimizer that cannot be trained this way.
        """
        if self._training is not None:
            raise BadInput(
                "prepare was called twice", means="a run trains one model", do="wrap several in one nn.Module"
            )
        self._training = Trainer(
            self._here,
            self._heartbeat,
            self._reporter,
            model,
            optimizer,
            scheduler=scheduler,
            scaler=scaler,
            clip_grad_norm=clip_grad_norm,
            keep=self.keep,
        )
        return model, optimizer

    def steps(
        self,
        dataset: MapDataset | IterableDataset[Any] | Factory,
        *,
        global_batch: int,
        microbatch: int,
        until: str | int,
        collate: Collate | None = None,
        loaders: int = 0,
        prefetch: int = 2,
        replay: bool = False,
    ) -> Iterator[TrainingStep]:
        """The training steps of the run, from where it stands to its end.

        Leaving the loop between two steps, by all workers alike, ends the run as `stop` does.

        Args:
            dataset: map-style, shuffled anew each epoch by the run's seed, every sample once; or a stream,
                one shard for each virtual rank: an ``IterableDataset`` with a state, or a function
                ``(shard, shards)`` that returns an iterable with a state.
            global_batch: samples per step, whatever the number of workers.
            microbatch: samples per virtual rank; ``--virtual-ranks`` takes precedence.
            until: ``"3 epochs"``, ``"500 steps"`` or a number of steps.
            collate: list of samples to a batch; PyTorch's default otherwise.
            loaders: processes of each worker that load ahead; 0: it loads what it needs when it needs it.
            prefetch: batches that each loader has under way or ready.
            replay: allow a stream that has no state: who takes it over draws all before once more.

        Raises:
            BadInput: numbers that do not fit together.
        """
        training, spec = self._prepared(), self._here.spec
        check_dataset(dataset, "run.steps")
        check_collate("run.steps", collate)
        check_count("run.steps", "loaders", loaders, least=0)
        check_count("run.steps", "prefetch", prefetch)
        if self._begun:
            raise BadInput(
                "steps was called twice", means="a run has one sequence of steps", do="use one loop"
            )
        self._begun = True
        source = open_stream(dataset, replay=replay)
        plan = make_plan(
            0 if source else measure_length(cast("MapDataset", dataset)),
            global_batch,
            microbatch,
            until,
            virtual_ranks=spec.virtual_ranks,
            seed=spec.seed,
        )
        if not self._reporter.alone and plan.virtual_ranks < spec.max_workers:
            raise BadInput(
                f"{plan.virtual_ranks} virtual ranks cannot keep {spec.max_workers} workers busy",
                means="each worker needs at least one virtual rank of every step",
                do=f"use --workers up to {plan.virtual_ranks}, or a smaller microbatch",
            )
        # Loaders are forked before the dataset is first read: what it opens then they must not share.
        batches: BatchSource
        if source is None:
            mapped, vital = cast("MapDataset", dataset), not self._reporter.alone
            batches = MapBatchSource(mapped, plan, collate, loaders=loaders, prefetch=prefetch, vital=vital)
            digest = digest_dataset(mapped, plan.seed)
            self._warn_of_batches(mapped, plan)
        else:
            batches = StreamBatchSource(source, plan, collate, loaders=loaders)
            digest = check_stream(source, plan, dataset)
        with closing(batches):
            training.start(plan, digest)
            self._reporter.loop_left = self._loop_left
            if (origin := training.origin) is not None:
                self._ending = origin.ending
                self._finished = bool(origin.ending) or batches.finished(origin.outcome)
            if self._finished:
                # No step will rehearse it.
                training.ready()
            while not self._finished:
                step = self._step = TrainingStep(training, plan, batches)
                training.seed_ahead(training.step + 1)
                try:
                    yield step
                except GeneratorExit:
                    self._heartbeat.beat(Phase.USER)
                    raise
                if not (self._ending and not step.begun):
                    step.finish()
                self._reporter.script_went_on()
                self._heartbeat.beat(Phase.USER)
                self._finished = step.last or bool(self._ending)
                if step.ended_epoch and not self._finished and training.keeps_epochs:
                    training.checkpoint({})
        self._settle(early=bool(self._ending) and not (self._step is not None and self._step.last))

    @property
    def step(self) -> int:
        """Trainer steps made so far."""
        if self._step is not None and not self._step.begun and not self._finished:
            # A worker that joins learns it with its first step.
            return self._step.number - 1
        return self._training.step if self._training else 0

    def stop(self, reason: str) -> None:
        """End the run after the step just made, as finished: the loop ends and the model is written.

        Called between steps, by all workers alike, which their votes check.

        Args:
            reason: for the records.

        Raises:
            BadInput: no step has been made yet, or one is under way.
        """
        if not self.step or (self._step is not None and self._step.under_way):
            raise BadInput(
                "run.stop was called " + ("inside a step" if self.step else "before the first step"),
                means="workers meet between steps only, and can end the run together only there",
                do="call it after the inner loop, on what all workers have alike, such as step.loss",
            )
        self._ending = reason or "its script has stopped it"

    def _loop_left(self) -> bool:
        """The script has ended inside the loop: the run ends too, if that was between two steps."""
        if not self.step or self._step is None or self._step.under_way:
            return False
        self._ending = self._ending or f"its script has left the loop after step {self.step}"
        self._settle(early=True)
        return True

    def _settle(self, *, early: bool) -> None:
        training = self._prepared()
        if early:
            self._reporter.ending = self._ending
        self._reporter.stopped = self._step is not None and self._step.cut_short
        training.settle()
        self._finished = True
        if early and training.digest is not None:
            # The line of the last step went out before anybody knew that it was the last.
            detail = {
                "parameters_sha256": training.digest.parameters,
                "optimizer_sha256": training.digest.optimizer,
            }
            why = f"of parameters {training.digest.parameters[:16]}"
            line = EventLine(time=0.0, kind="digest", why=why, step=training.step, detail=detail)
            self._reporter.happened("digest", line)

    def evaluate(self, dataset: MapDataset, *, microbatch: int, collate: Collate | None = None) -> Evaluation:
        """One pass over a dataset, spread over the workers; iterate it and `Evaluation.add` to it.

        Raises:
            BadInput: no model is prepared, or the dataset cannot be read by position.
        """
        return Evaluation(self._prepared(), dataset, microbatch, collate)

    def checkpoint(self, **metrics: float) -> None:
        """Keep the state as it is now; called alike on all workers, between steps.

        Training goes on at once: the state is copied under the next step and written behind the following.
        Alone, or with ``--checkpoint-every never``, nothing is kept.

        Args:
            **metrics: what the checkpoint is told apart by, ``eval_loss=2.1``; see ``--keep-best``. The
                checkpoint has none that is not finite.

        Raises:
            BadInput: a metric is not a number, or is called as the step's own.
        """
        training = self._prepared()
        checked = parse_values(metrics, "run.checkpoint")
        if STEP_LOSS in checked:
            raise BadInput(
                f"run.checkpoint({STEP_LOSS}=...)",
                means="a checkpoint has the loss of its step under that name already",
                do="use another name, such as run.checkpoint(val_loss=...)",
            )
        training.checkpoint(checked)
        policy = self._here.spec.checkpoints
        if checked and (policy is None or policy.keep_best is None):
            self._reporter.warn("keep-best", _keeps_no_best(next(iter(checked)), policy), step=training.step)
        for name, value in checked.items():
            if not math.isfinite(value):
                told = f"run.checkpoint({name}=...) was given {value}: this checkpoint cannot be the best"
                self._reporter.warn("not-finite", told, step=training.step)

    def log(self, **values: float | torch.Tensor) -> None:
        """Record values of a step: each step of the run has them once, over kills, joins and resumes.

        In the loop over a step, the values are those of the microbatch at hand, and the step has their mean
        over its samples. After that loop, the values are those of the step, alike on all workers. They are in
        the step's line of ``ledger.jsonl``, under ``logged``. Alone, nothing is recorded.

        Args:
            **values: numbers, or tensors of one element.

        Raises:
            BadInput: a value cannot be recorded, or there is no step that it belongs to.
        """
        checked = parse_values(values, "run.log")
        if self._step is not None and self._step.under_way:
            self._step.log(checked)
        else:
            self._between_steps("run.log").log(checked)

    @contextmanager
    def artifact(self, name: str) -> Iterator[Path]:
        """Write a file of the step just made: once per run, over kills, joins and resumes.

        Gives the path to write to. Every worker writes the file, alike, and one of them stays as
        ``artifacts/step-N/NAME`` in the run directory; alone, in the working directory.

        Args:
            name: of the file: letters, digits, dots, underscores and hyphens.

        Raises:
            BadInput: the name cannot be used, nothing was written, or there is no step that it belongs to.
        """
        training = self._between_steps("run.artifact")
        checked = check_artifact_name(name)
        run_dir = self._here.run_dir
        folder = run_dir.artifacts if run_dir is not None else Path("artifacts")
        with write_artifact(folder, training.step, checked, self._here.worker) as (path, found):
            yield path
        training.add_artifact(checked, found[0])

    def _warn_of_batches(self, dataset: MapDataset, plan: BatchPlan) -> None:
        if (rows := count_batch_rows(dataset)) > 1:
            self._reporter.warn("batches", _looks_batched(rows, plan), step=self.step)

    def _between_steps(self, function: str) -> Trainer:
        """The training, between two steps.

        Raises:
            BadInput: it is before the first step of this process, inside one, or after the last.
        """
        training = self._prepared()
        do = "call it after the loop over the microbatches of the step, in the loop over run.steps"
        if self._finished:
            means = "the line of the last step is in the ledger already"
            raise BadInput(
                f"{function} was called after the last step", means=means, do=f"{do}: if step.last: ..."
            )
        if training.iterating:
            means = "each worker iterates other microbatches, and what is recorded is the same for all"
            raise BadInput(f"{function} was called inside {training.iterating}", means=means, do=do)
        if self._step is None or not self._step.ended:
            means = "what is recorded belongs to the step just made, which a worker that joins has not seen"
            raise BadInput(f"{function} was called before the step was made", means=means, do=do)
        return training

    def print(self, *values: object) -> None:
        """Print once per run, not once per worker; each worker's own log has it too."""
        text = " ".join(map(str, values))
        # The log of a worker would be hard to read without what the script says between its other lines.
        print(text, flush=True)  # noqa: T201 - that is its purpose
        step = self._training.step if self._training else 0
        # All workers print the same things in the same order, so step and place name a line.
        place = self._printed[1] + 1 if self._printed[0] == step else 1
        self._printed = step, place
        line = EventLine(time=0.0, kind="message", why=text, step=step)
        self._reporter.happened(f"print-{step}-{place}", line)

    @property
    def digest(self) -> Digest | None:
        """Digests of the state after the last step; None until the loop over `steps` has ended."""
        return self._training.digest if self._training and self._finished else None

    def _prepared(self) -> Trainer:
        if self._training is None:
            raise BadInput(
                "the run has no model yet",
                means="prepare comes first",
                do="call run.prepare(model, optimizer)",
            )
        return self._training


def _looks_batched(rows: int, plan: BatchPlan) -> str:
    return (
        f"the dataset is a list whose items look like batches of {rows}: an item counts as one sample, so a "
        f"step has {plan.global_batch} of them. Pass the samples, such as loader.dataset, if they are batches"
    )


def _keeps_no_best(metric: str, policy: CheckpointPolicy | None) -> str:
    if policy is None:
        return (
            f"run.checkpoint({metric}=...) keeps nothing: the run was started with --checkpoint-every never"
        )
    return (
        f"run.checkpoint({metric}=...) keeps the checkpoint among the last {policy.keep_last}, whatever "
        f"{metric} is. To keep the best one, start the run with --keep-best {metric}:min, or :max"
    )
