"""The interface of a training script: `join` returns a `Run`, and `Run.steps` is the training loop."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import IterableDataset

from elastane.common.errors import BadInput
from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.records import PRINTED, Digest, EventLine
from elastane.run.nouns.round_options import InnerName, WireName
from elastane.run.nouns.sites import AbsentRule
from elastane.run.nouns.spec import CheckpointPolicy
from elastane.run.nouns.trackers import Tracker, parse_trackers, require_trackers
from elastane.run.trackers import tracker_requests
from elastane.run.worker import worker_settings
from elastane.run.worker.arguments import check_delay, parse_wire
from elastane.run.worker.artifacts import check_artifact_name, write_artifact
from elastane.run.worker.bound_round import BoundRound
from elastane.run.worker.data.batch_sources import (
    BatchPlan,
    BatchSource,
    Collate,
    MapBatchSource,
    MapDataset,
    make_plan,
    measure_length,
)
from elastane.run.worker.data.bound_data import (
    BoundBatchSource,
    SiteData,
    check_site_data,
    refuse_absent,
    refuse_for_sites,
)
from elastane.run.worker.data.data_continuity import build_nothing_left_error, check_continuity
from elastane.run.worker.data.dataset_checks import (
    check_collate,
    check_count,
    check_dataset,
    check_positions,
    count_batch_rows,
)
from elastane.run.worker.data.determinism import seed_everything
from elastane.run.worker.data.epoch_order import EpochOrder, Order, check_order
from elastane.run.worker.data.fingerprint import digest_dataset
from elastane.run.worker.data.round_plans import bind_ranks, make_round_plan
from elastane.run.worker.data.streams import (
    Factory,
    Stream,
    StreamBatchSource,
    check_stream,
    detect_stream,
)
from elastane.run.worker.evaluation import Evaluation
from elastane.run.worker.finished.text_files import check_tokenizer
from elastane.run.worker.gangs.gang_checks import check_ranks, refuse_in_gang
from elastane.run.worker.heartbeat import Heartbeat, stop_beats_at_imports
from elastane.run.worker.privacy import Privacy, check_privacy, count_uses, describe_privacy
from elastane.run.worker.reporter import Reporter, get_reporter
from elastane.run.worker.script_output import show_prints
from elastane.run.worker.state import devices
from elastane.run.worker.state.difference_noise import DifferenceNoise
from elastane.run.worker.state.inner_optimizer import OuterOptimizer
from elastane.run.worker.state.module_attributes import KeptAttributes, has_attributes
from elastane.run.worker.state.run_keep import RunKeep
from elastane.run.worker.state.square_root import replace_square_root
from elastane.run.worker.step import TrainingStep
from elastane.run.worker.trainer import Trainer
from elastane.run.worker.training_round import TrainingRound
from elastane.run.worker.values import parse_values

STEP_LOSS = "loss"
"""The name of the step's loss among the metrics of a checkpoint."""

_run: "Run | None" = None

AnyModule = TypeVar("AnyModule", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
AnyStep = TypeVar("AnyStep", bound=TrainingStep)


def join(*, log: str | Sequence[str] = ()) -> "Run":
    """Join the run that this process was started for, or train alone under plain ``python``.

    Set the number of intra-op threads and seed every random generator, so that a model built next has the
    same initial values in every worker.

    Args:
        log: trackers that receive the metrics of each step, such as ``"tensorboard,mlflow"``, beside those of
            ``--log``. All workers name the same ones.

    Raises:
        BadInput: this process has joined already, or a tracker is unknown or not installed.
    """
    trackers = parse_trackers(log, "elastane.join(log=...)") if log else ()
    require_trackers(trackers, "elastane.join(log=...):")
    settings = worker_settings.get_settings()
    if get_reporter() is not None:
        raise BadInput(
            "elastane.join() was called twice",
            means="a worker joins its run once",
            do="call elastane.join() once, and pass the run that it returns to the code that needs it",
        )
    torch.set_num_threads(settings.spec.threads)
    devices.pin_libraries()
    if settings.spec.numerics == "portable":
        replace_square_root()
    # Also seeds accelerators that are not in use yet.
    torch.manual_seed(settings.spec.seed)
    seed_everything(settings.spec.seed)
    global _run  # noqa: PLW0603 - a worker joins once
    _run = Run(settings, trackers)
    show_prints(_run.show_printed)
    return _run


def get_run() -> "Run":
    """Return the run that this worker has joined, and join it at the first call.

    A process that trains alone may train several times, so it gets a new run unless its last one is unused.
    """
    if _run is not None and (get_reporter() is not None or not _run.is_prepared):
        return _run
    return join()


class Run:
    """One worker's view of a training run; `join` returns it.

    Attributes:
        keep: the values that the script keeps from step to step, by name. They are the same on every worker
            and part of checkpoints, and a worker that joins receives them.
        is_prepared: the script has handed over a model.
    """

    def __init__(self, settings: worker_settings.WorkerSettings, trackers: tuple[Tracker, ...] = ()) -> None:
        self._settings = settings
        beats = settings.run_dir.node_files.beats if settings.run_dir else None
        stop_beats_at_imports()
        self._heartbeat = Heartbeat(beats, settings.worker, settings.seat)
        self._heartbeat.beat(Phase.STARTING)
        self._reporter = Reporter(settings)
        _request_trackers(self._reporter, trackers)
        self._trainer: Trainer | None = None
        self.is_prepared = False
        self.keep = RunKeep()
        self._step: TrainingStep | None = None
        self._ending = ""
        self._begun = self._finished = False
        # The step of the last line of each kind, and its place among those of the step.
        self._last_lines: dict[str, tuple[int, int]] = {}

    def prepare(
        self,
        model: AnyModule,
        optimizer: AnyOptimizer,
        *,
        scheduler: LRScheduler | None = None,
        scaler: GradScaler | None = None,
        clip_grad_norm: float | None = None,
        tokenizer: Any = None,
        outer: OuterOptimizer | None = None,
        inner_state: InnerName = "fresh",
    ) -> tuple[AnyModule, AnyOptimizer]:
        """Hand the model and the optimizer over to the run; returns the same objects.

        Args:
            model: on the CPU or on one CUDA device. On the CPU its parameters move into shared memory, in
                place.
            optimizer: any of ``torch.optim`` with ``--copies all``; an elementwise one with ``--copies N``.
            scheduler: a learning-rate schedule, which the run steps once after every training step. The
                script itself steps a ``ReduceLROnPlateau`` between two steps, with the metric it needs.
            scaler: for fp16. The run scales every loss, unscales the gradient and updates the scale. All
                workers skip the same steps.
            clip_grad_norm: largest norm of the whole gradient, as in ``torch.nn.utils.clip_grad_norm_``.
            tokenizer: of ``transformers``; the run writes its files beside the finished model.
            outer: for `rounds`: builds the optimizer that steps once in a round, such as
                ``elastane.outer.Nesterov(lr=0.7, momentum=0.9)``. Then ``optimizer``, ``scheduler`` and
                ``clip_grad_norm`` belong to the inner steps.
            inner_state: the state with which ``optimizer`` begins in each virtual rank of a round:
                ``"fresh"``, or ``"averaged"`` over the virtual ranks of the round before.

        Raises:
            BadInput: the run cannot train this model with this optimizer.
        """
        if self._trainer is not None:
            raise BadInput(
                "run.prepare was called twice",
                means="a run trains one model",
                do="put several models into one nn.ModuleDict, and call run.prepare once",
            )
        check_tokenizer(tokenizer)
        self._trainer = Trainer(
            self._settings,
            self._heartbeat,
            self._reporter,
            model,
            optimizer,
            scheduler=scheduler,
            scaler=scaler,
            clip_grad_norm=clip_grad_norm,
            keep=self.keep,
            outer=outer,
            inner_state=inner_state,
        )
        self._trainer.state.tokenizer = tokenizer
        self.is_prepared = True
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
        order: Order | None = None,
        drop_last: bool = False,
        data: Any = None,
    ) -> Iterator[TrainingStep]:
        """Iterate over the training steps of the run, from its current step to its end.

        To leave the loop between two steps ends the run, as `stop` does; all workers must leave it after the
        same step.

        Args:
            dataset: a map-style dataset, which is shuffled anew in each epoch by the run's seed and read once
                per epoch; or a stream with one shard for each virtual rank: an ``IterableDataset`` with a
                state, or a function ``(shard, shards)`` that returns an iterable with a state.
            global_batch: samples per step, for any number of workers.
            microbatch: samples per virtual rank; ``--virtual-ranks`` takes precedence.
            until: ``"3 epochs"``, ``"500 steps"`` or a number of steps.
            collate: makes a batch of a list of samples; None: PyTorch's default.
            loaders: loader processes of each worker; 0: the worker itself loads each batch when it needs it.
            prefetch: batches that each loader process loads ahead.
            replay: use no state of a stream: a worker that takes over a shard reads it again from its
                beginning.
            order: takes the number of an epoch, from 0, and returns each position of the dataset once, in the
                order in which the epoch reads them; the same for the same number, in every process. None: the
                run shuffles each epoch by its seed.
            drop_last: each epoch leaves out its last samples, if they do not fill a step.
            data: in a worker of several processes, the dimension of their mesh along which they compute
                different microbatches, such as ``mesh["dp"]``; None: all of them do. Along a second
                dimension of it they compute parts of each microbatch, as with ``mesh["dp", "cp"]``.

        Raises:
            BadInput: the dataset cannot be used, or the numbers do not fit together.
        """
        check_dataset(dataset, "run.steps")
        self._begin("run.steps", collate, loaders, prefetch, order, in_rounds=False)
        stream = detect_stream(dataset, replay=replay)
        if stream is not None:
            refuse_in_gang(
                "run.steps with a stream",
                "the positions of streams have been tried with one process per worker only",
                self._settings.spec.processes,
            )
        self._get_trainer().choose_place(data)
        length = 0 if stream else measure_length(cast("MapDataset", dataset))
        plan = self._make_plan(length, global_batch, microbatch, until, drop_last=drop_last)
        batches, digest = self._open_batches(
            dataset,
            plan,
            collate,
            stream=stream,
            loaders=loaders,
            prefetch=prefetch,
            order=order,
        )
        yield from self._train(TrainingStep, plan, batches, digest, is_ordered=order is not None)

    def rounds(
        self,
        dataset: MapDataset | SiteData,
        *,
        inner_steps: int,
        ranks: int,
        global_batch: int,
        until: str | int,
        microbatch: int | None = None,
        wire: WireName = "full",
        group: int = 1,
        delay: int = 0,
        collate: Collate | None = None,
        loaders: int = 0,
        prefetch: int = 2,
        order: Order | None = None,
        absent: AbsentRule | None = None,
        privacy: Privacy | None = None,
    ) -> Iterator[TrainingRound]:
        """Iterate over the rounds of the run, for workers with little bandwidth between them.

        In a round each virtual rank makes steps of the optimizer by itself, from the same parameters; then
        the outer optimizer of `prepare` steps by the mean of what the virtual ranks have changed.

        Args:
            dataset: a map-style dataset, which is shuffled and read as in `steps`. Or a dict of sites, each
                with its dataset or with a function that opens it: then the data of a site is read there only,
                and its virtual ranks are computed there only.
            inner_steps: steps of each virtual rank in a round; fewer in the last round of an epoch.
            ranks: virtual ranks; ``--virtual-ranks`` takes precedence. More workers than ranks cannot train.
            global_batch: samples that all virtual ranks together take for one inner step.
            until: ``"3 epochs"``, ``"500 rounds"`` or a number of rounds.
            microbatch: samples of one pass; None: all that a virtual rank takes for an inner step.
            wire: ``"bf16"``, ``"int8"`` or ``"int4"``: round what virtual ranks have changed, and their sum,
                to values of so few bits, in which they cross to other machines; ``"full"``: do not.
            group: virtual ranks that are added before they are rounded, such as all of one site.
            delay: 1: exchange what virtual ranks have changed under the inner steps of the next round. The
                model takes each change one round later.
            collate: as in `steps`.
            loaders: as in `steps`.
            prefetch: as in `steps`.
            order: as in `steps`.
            absent: for a dict of sites: ``"wait"``, the default: a round without a worker of some site waits
                for it; ``"skip"``: it leaves the virtual ranks of that site out.
            privacy: for a dict of sites: clip what each virtual rank has changed, and add noise before it
                leaves its site. Then the loss of a round stays at its site, too.

        Raises:
            BadInput: the dataset cannot be used, or the numbers do not fit together.
        """
        refuse_in_gang(
            "run.rounds",
            "the differences of a divided model have not been tried",
            self._settings.spec.processes,
        )
        spec, is_bound = self._settings.spec, isinstance(dataset, Mapping)
        check_delay(delay)
        if is_bound:
            rule = check_site_data(cast("SiteData", dataset), absent, spec.copies)
            refuse_for_sites(loaders=loaders, order=order, delay=delay, absent=rule)
        else:
            refuse_absent(absent)
            check_positions(dataset, "run.rounds")
        if privacy is not None:
            shared = [extent.name for extent in self._get_trainer().layout.buffer_extents]
            check_privacy(privacy, is_bound=is_bound, shared=shared)
        self._begin("run.rounds", collate, loaders, prefetch, order, in_rounds=True)
        plan = make_round_plan(
            0 if is_bound else measure_length(cast("MapDataset", dataset)),
            inner_steps,
            ranks if spec.virtual_ranks is None else spec.virtual_ranks,
            global_batch,
            until,
            microbatch=microbatch,
            seed=spec.seed,
            began_at=self._settings.began_at,
        )
        self._check_ranks(plan)
        self._get_trainer().set_wire(parse_wire(wire, group, plan.virtual_ranks))
        if delay:
            self._get_trainer().delay_differences()
        if is_bound:
            data = cast("SiteData", dataset)
            plan = bind_ranks(plan, data, rule)
            sites = tuple(data) if self._reporter.alone else self._settings.sites
            source = BoundBatchSource(data, plan, sites, collate)
            if privacy is not None:
                self._begin_privacy(privacy, plan, source)
            yield from self._train(BoundRound, plan, source, "", is_ordered=False)
            return
        batches, digest = self._open_batches(
            cast("MapDataset", dataset),
            plan,
            collate,
            stream=None,
            loaders=loaders,
            prefetch=prefetch,
            order=order,
        )
        yield from self._train(TrainingRound, plan, batches, digest, is_ordered=order is not None)

    def _begin_privacy(self, privacy: Privacy, plan: BatchPlan, source: BoundBatchSource) -> None:
        """Let differences have noise, and record what that guarantees at the sites of this worker."""
        keys = {site: privacy.read_key(site) for site in source.lengths}
        own = {rank: keys[site] for rank, site in enumerate(plan.rank_sites) if site in keys}
        noise = DifferenceNoise(privacy.clip, privacy.noise, own)
        source.seal_digests(noise.seal)
        self._get_trainer().add_noise(noise)
        for site, length in source.lengths.items():
            why = describe_privacy(privacy, count_uses(plan, site, length), plan.absent)
            line = EventLine(time=0.0, kind="privacy.planned", who=f"site {site}", why=why)
            self._reporter.report_event(f"privacy-{site}", line)

    def _begin(
        self,
        function: str,
        collate: Collate | None,
        loaders: int,
        prefetch: int,
        order: Order | None,
        *,
        in_rounds: bool,
    ) -> None:
        """Check arguments of `steps` or `rounds`, and begin the only loop of the run.

        Raises:
            BadInput: an argument is invalid, `prepare` was called for the other kind of loop, or the run has
                had its loop.
        """
        check_collate(function, collate)
        check_count(function, "loaders", loaders, least=0)
        check_count(function, "prefetch", prefetch)
        check_order(order)
        if (self._get_trainer().state.inner is not None) != in_rounds:
            has = "no outer optimizer" if in_rounds else "an outer optimizer"
            raise BadInput(
                f"{function} was called, and run.prepare was given {has}",
                means="a round needs an outer optimizer, and a step has none",
                do="call run.prepare(model, optimizer, outer=elastane.outer.Nesterov()) with run.rounds, and "
                "run.prepare(model, optimizer) with run.steps",
            )
        if self._begun:
            raise BadInput(
                f"{function} was called twice",
                means="a run has one sequence of steps",
                do=f"use one loop over {function}, with until= for all of its steps",
            )
        self._begun = True

    def _train(
        self,
        kind: type[AnyStep],
        plan: BatchPlan,
        batches: BatchSource,
        digest: str,
        *,
        is_ordered: bool,
    ) -> Iterator[AnyStep]:
        """Iterate over the steps or the rounds of the run.

        Args:
            digest: the digest of the dataset.
            is_ordered: the script chooses the order of each epoch.
        """
        trainer = self._get_trainer()
        with closing(batches):
            if (origin := self._settings.origin) is not None:
                check_continuity(origin, plan, batches.site_digests, is_ordered=is_ordered)
            trainer.start(plan, digest, batches)
            self._resume(plan, batches)
            while not self._finished:
                step = self._step = kind(trainer, plan, batches)
                trainer.seeds.seed_ahead(trainer.step + 1)
                try:
                    yield step
                except GeneratorExit:
                    self._heartbeat.beat(Phase.USER)
                    raise
                self._end_step(step)
        self._settle(early=bool(self._ending) and not (self._step is not None and self._step.last))

    def _open_batches(
        self,
        dataset: MapDataset | IterableDataset[Any] | Factory,
        plan: BatchPlan,
        collate: Collate | None,
        *,
        stream: Stream | None,
        loaders: int,
        prefetch: int,
        order: Order | None,
    ) -> tuple[BatchSource, str]:
        """Return the batches, and a digest of the dataset.

        Args:
            stream: the dataset as a stream; None: it is map-style.

        Raises:
            BadInput: the dataset cannot be used.
        """
        # Fork loader processes before the first read of the dataset, so that they share nothing it opens.
        if stream is not None:
            if order is not None:
                raise _build_stream_order_error()
            shards = StreamBatchSource(stream, plan, collate, self._warn_of_stream, loaders=loaders)
            return shards, check_stream(stream, plan, dataset)
        samples, vital = cast("MapDataset", dataset), not self._reporter.alone
        chosen = EpochOrder(order, plan.length) if order is not None else None
        batches = MapBatchSource(
            samples, plan, collate, loaders=loaders, prefetch=prefetch, vital=vital, order=chosen
        )
        attributes = KeptAttributes(samples) if has_attributes(samples) else None
        digest = digest_dataset(samples, plan.seed)
        if attributes is not None:
            attributes.exclude_changed()
            replicated = self._get_trainer().state.replicated
            replicated.dataset, replicated.is_dataset_copied = attributes, loaders > 0
        if (rows := count_batch_rows(samples)) > 1:
            self._reporter.warn("batches", _warn_of_batches(rows, plan), step=self.step)
        return batches, digest

    def _warn_of_stream(self, text: str) -> None:
        self._reporter.warn("stream", text, step=self.step)

    def _make_plan(
        self, length: int, global_batch: int, microbatch: int, until: str | int, *, drop_last: bool
    ) -> BatchPlan:
        spec = self._settings.spec
        plan = make_plan(
            length,
            global_batch,
            microbatch,
            until,
            virtual_ranks=spec.virtual_ranks,
            seed=spec.seed,
            drop_last=drop_last,
            began_at=self._settings.began_at,
        )
        self._check_ranks(plan)
        return plan

    def _check_ranks(self, plan: BatchPlan) -> None:
        if not self._reporter.alone:
            check_ranks(plan, self._settings.spec, self._get_trainer().place.size)

    def _resume(self, plan: BatchPlan, batches: BatchSource) -> None:
        """Note that the run is finished, if the checkpoint from which it resumes is its last one.

        Raises:
            BadInput: a new run would end where it begins.
        """
        trainer = self._get_trainer()
        self._reporter.leave_loop = self._leave_loop
        if trainer.start_checkpoint is not None:
            self._ending = trainer.start_checkpoint.ending
            self._finished = bool(self._ending) or batches.is_finished(trainer.start_checkpoint.outcome)
        if self._finished and (origin := self._settings.origin) is not None and trainer.step == origin.step:
            raise build_nothing_left_error(origin, plan)
        if self._finished:
            # No step is left to rehearse.
            trainer.end_rehearsal()

    def _end_step(self, step: TrainingStep) -> None:
        """Check that the script has iterated the step to its end, and decide whether the run continues.

        Raises:
            BadInput: the script has left the step early.
        """
        trainer = self._get_trainer()
        if not (self._ending and not step.begun):
            step.check_ended()
        self._reporter.steps.end_record()
        self._heartbeat.beat(Phase.USER)
        self._finished = step.last or bool(self._ending)
        if step.ended_epoch and not self._finished and trainer.schedule.each_epoch:
            trainer.take_checkpoint({})

    @property
    def sites(self) -> tuple[SiteName, ...]:
        """The sites of this worker, of ``--site``: those of which it may read the data."""
        return self._settings.sites

    def show_progress(self) -> None:
        """Show that the script makes progress in long work between two steps, so it does not look hung."""
        self._heartbeat.beat(Phase.USER)

    @property
    def step(self) -> int:
        """The number of training steps committed so far."""
        if self._step is not None and not self._step.begun and not self._finished:
            # A worker that joins learns the number with its first step.
            return self._step.number - 1
        return self._trainer.step if self._trainer else 0

    def stop(self, reason: str) -> None:
        """End the run after the step just made: the loop over `steps` ends and the model is written.

        Call it between two steps, on all workers alike; their votes check that.

        Args:
            reason: for the run's records.

        Raises:
            BadInput: no step has been made yet, or a step is under way.
        """
        if not self.step or (self._step is not None and self._step.under_way):
            raise BadInput(
                "run.stop was called " + ("inside a step" if self.step else "before the first step"),
                means="all workers end the run together, which they can do only between two steps",
                do="call it after the inner loop; decide by a value that all workers have, such as step.loss",
            )
        self._ending = reason or "its script stopped it"

    def _leave_loop(self) -> bool:
        """End the run after its script, if the script has left the loop between two steps."""
        if not self.step or self._step is None or self._step.under_way:
            return False
        self._ending = self._ending or f"its script left the loop after step {self.step}"
        self._settle(early=True)
        return True

    def _settle(self, *, early: bool) -> None:
        """Make the last round, which agrees on the digest of the finished state."""
        trainer = self._get_trainer()
        if early:
            self._reporter.ending = self._ending
        self._reporter.stopped = self._step is not None and self._step.cut_short
        trainer.settle()
        self._finished = True
        if early and trainer.digest is not None:
            # The ledger line of the last step was sent before the worker knew that it was the last.
            self._reporter.report_digest("digest", trainer.digest, trainer.step)

    def evaluate(self, dataset: MapDataset, *, microbatch: int, collate: Collate | None = None) -> Evaluation:
        """Return one pass over a dataset, which the workers share; iterate over it and call `Evaluation.add`.

        Args:
            dataset: a map-style dataset, read in its own order.
            microbatch: samples per batch.
            collate: makes a batch of a list of samples; None: PyTorch's default.

        Raises:
            BadInput: `prepare` has not been called, or the dataset has no samples by position.
        """
        return Evaluation(self._get_trainer(), dataset, microbatch, collate)

    def checkpoint(self, **metrics: float) -> None:
        """Take a checkpoint of the state as it is now.

        Call it between two steps, on all workers alike. Training goes on at once: the state is copied during
        the next step and written after that. Under plain ``python``, or with ``--checkpoint-every never``,
        nothing is written.

        Args:
            **metrics: numbers that ``--keep-best`` chooses by, such as ``eval_loss=2.1``. The checkpoint
                leaves out a number that is not finite.

        Raises:
            BadInput: a metric is not a number, or its name is ``loss``.
        """
        trainer = self._get_trainer()
        checked = parse_values(metrics, "run.checkpoint")
        if STEP_LOSS in checked:
            raise BadInput(
                f"run.checkpoint was given a metric with the name {STEP_LOSS}",
                means="each checkpoint already has the loss of its step under this name",
                do="use another name, such as run.checkpoint(val_loss=...)",
            )
        trainer.take_checkpoint(checked)
        policy = self._settings.spec.checkpoints
        if checked and (policy is None or policy.keep_best is None):
            self._reporter.warn("keep-best", _warn_of_no_best(next(iter(checked)), policy), step=trainer.step)
        for name, value in checked.items():
            if not math.isfinite(value):
                warning = f"run.checkpoint({name}=...) was given {value}: this checkpoint cannot be the best"
                self._reporter.warn("not-finite", warning, step=trainer.step)

    def log(self, **values: float | torch.Tensor) -> None:
        """Record values of a step; each step of the run has them once, over kills, joins and resumes.

        In the loop over a step, the values belong to the current microbatch, and the step gets their mean
        over its samples. After that loop, they belong to the step and are the same on all workers. They are
        in the step's line of ``ledger.jsonl``, under ``logged``. Plain ``python`` records nothing.

        Args:
            **values: numbers, or tensors of one element.

        Raises:
            BadInput: a value cannot be recorded, or no step has been made that it belongs to.
        """
        checked = parse_values(values, "run.log")
        if self._step is not None and self._step.under_way:
            self._step.log(checked)
        else:
            self._check_between_steps("run.log").log(checked)

    @contextmanager
    def artifact(self, name: str) -> Iterator[Path]:
        """Write a file of the step just made; each step has it once, over kills, joins and resumes.

        The context gives the path to write to. Every worker writes the same file, and one of the copies stays
        as ``artifacts/step-N/NAME`` in the run directory; under plain ``python``, in the working directory.

        Args:
            name: the name of the file: letters, digits, dots, underscores and hyphens.

        Raises:
            BadInput: the name cannot be used, the script wrote nothing, or no step has been made that the
                file belongs to.
        """
        trainer = self._check_between_steps("run.artifact")
        checked = check_artifact_name(name)
        run_dir = self._settings.run_dir
        folder = run_dir.artifacts if run_dir is not None else Path("artifacts")
        own = self._settings.worker, self._settings.seat.number
        with write_artifact(folder, trainer.step, checked, *own) as (path, found):
            yield path
        trainer.add_artifact(checked, found[0])

    def _check_between_steps(self, function: str) -> Trainer:
        """Return the trainer if the script is between two steps.

        Raises:
            BadInput: the script is before the first step of this process, inside a step, or after the last.
        """
        trainer = self._get_trainer()
        do = "call it after the loop over the microbatches of a step, in the loop over run.steps"
        if self._finished:
            raise BadInput(
                f"{function} was called after the last step",
                means="the ledger already has the line of the last step",
                do=f"{do}: if step.last: ...",
            )
        if trainer.iterating:
            raise BadInput(
                f"{function} was called inside {trainer.iterating}",
                means="a record must be the same on all workers, and each iterates other microbatches",
                do=do,
            )
        if self._step is None or not self._step.ended:
            raise BadInput(
                f"{function} was called before the step was made",
                means="a record belongs to the step just made, and a worker that joins has not made one yet",
                do=do,
            )
        return trainer

    def print(self, *values: object) -> None:
        """Print once per run instead of once per worker; each worker's own log has the line, too."""
        text = " ".join(map(str, values))
        # A worker's log would be hard to read without the script's own lines.
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        self._report_line("message", text)

    def show_printed(self, text: str) -> None:
        """Show a line that the script has printed with Python's ``print``, once for all workers."""
        # Inside a step or an evaluation each worker prints other lines.
        if self._trainer is None or not self._trainer.iterating:
            self._report_line(PRINTED, text)

    def _report_line(self, kind: str, text: str) -> None:
        step = self._trainer.step if self._trainer else 0
        # All workers print the same things in the same order, so step and place identify a line.
        last_step, last_place = self._last_lines.get(kind, (0, 0))
        place = last_place + 1 if last_step == step else 1
        self._last_lines[kind] = step, place
        line = EventLine(time=0.0, kind=kind, why=text, step=step)
        self._reporter.report_event(f"{kind}-{step}-{place}", line)

    @property
    def digest(self) -> Digest | None:
        """The digests of the state after the last step; None until the loop over `steps` has ended."""
        return self._trainer.digest if self._trainer and self._finished else None

    def _get_trainer(self) -> Trainer:
        if self._trainer is None:
            raise BadInput(
                "the run has no model yet",
                means="the script has not called run.prepare yet",
                do="call model, optimizer = run.prepare(model, optimizer) first",
            )
        return self._trainer


def _build_stream_order_error() -> BadInput:
    return BadInput(
        "run.steps was given order= with a stream",
        means="order says which positions an epoch reads, and a stream has no positions",
        do="remove order=, or pass a dataset with __len__ and __getitem__",
    )


def _request_trackers(reporter: Reporter, names: tuple[Tracker, ...]) -> None:
    """Request trackers of the run, or feed them from here if this process trains alone."""
    if not names:
        return
    if reporter.alone:
        # Only a process that trains alone imports the libraries of trackers.
        from elastane.run.worker.lone_tracking import LoneTracking

        reporter.tracking = LoneTracking(names, lambda: reporter.complete)
        return
    listed = ",".join(names)
    request = EventLine(time=0.0, kind=tracker_requests.KIND, who="script", why=listed)
    reporter.report_event(f"trackers-{listed}", request)


def _warn_of_batches(rows: int, plan: BatchPlan) -> str:
    return (
        f"the items of the dataset look like batches of {rows}. The run takes each item as one sample, so a "
        f"step has {plan.global_batch} of them. If they are batches, pass the samples instead, such as "
        "loader.dataset"
    )


def _warn_of_no_best(metric: str, policy: CheckpointPolicy | None) -> str:
    if policy is None:
        return (
            f"run.checkpoint({metric}=...) writes nothing: the run was started with --checkpoint-every never"
        )
    return (
        f"run.checkpoint({metric}=...): the run keeps its last {policy.keep_last} checkpoints and does not "
        f"look at {metric}. To keep the best checkpoint, start the run with --keep-best {metric}:min, or :max"
    )
