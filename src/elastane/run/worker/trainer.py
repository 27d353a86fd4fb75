"""One worker's training: its state, its rounds, and the application of committed steps."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from elastane.common.errors import BadInput
from elastane.run.nouns.checkpoints import EVALUATION, WrittenFile
from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.nouns.membership import Generation, Member
from elastane.run.nouns.records import Digest
from elastane.run.nouns.round_options import InnerName
from elastane.run.nouns.rundir import GATHERED
from elastane.run.nouns.spec import CheckpointPolicy, Pinned, Probe, RunOrigin
from elastane.run.protocol import actions, events
from elastane.run.protocol.layout import REPLICATED_BLOCK
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.messages import RoundOutcome
from elastane.run.worker import assembly
from elastane.run.worker.arguments import check_arguments, check_not_wrapped, check_process_group
from elastane.run.worker.checkpoints.state_reader import StartingCheckpoint
from elastane.run.worker.data.batch_sources import BatchPlan, BatchSource
from elastane.run.worker.data.data_continuity import describe_changes
from elastane.run.worker.data.determinism import ScriptSeeds
from elastane.run.worker.gangs.data_place import DataPlace, find_data_place
from elastane.run.worker.gathered_tensors import RoundFolders
from elastane.run.worker.heartbeat import Heartbeat
from elastane.run.worker.late_losses import ResultPoster
from elastane.run.worker.reactor import Reactor
from elastane.run.worker.reporter import Reporter
from elastane.run.worker.state.difference_noise import DifferenceNoise
from elastane.run.worker.state.inner_optimizer import OuterOptimizer
from elastane.run.worker.state.loss_scaling import compute_gradient_scale
from elastane.run.worker.state.run_keep import RunKeep
from elastane.run.worker.state.training_state import combine_digests
from elastane.run.worker.state.wire_formats import WireFormat
from elastane.run.worker.step_record import StepRecord
from elastane.run.worker.worker_round import WorkerRound
from elastane.run.worker.worker_settings import WorkerSettings


class AppliedStep(msgspec.Struct, frozen=True):
    """The facts about the application of a committed step.

    Args:
        norm: the norm of the gradient before clipping; None unless it is clipped.
        skipped: the scaled gradient overflowed, so the optimizer did not run.
        learning_rates: see `elastane.run.nouns.records.LedgerLine`.
    """

    norm: float | None
    skipped: bool
    learning_rates: tuple[float, ...] = ()


class Trainer:
    """One worker's copy of the training.

    Args:
        settings: the settings of this process.
        heartbeat: moved by the training thread.
        reporter: reports to the coordinator.
        model: the model given to ``prepare``.
        optimizer: the optimizer given to ``prepare``.
        scheduler: the schedule given to ``prepare``.
        scaler: the scaler given to ``prepare``; None or a disabled one: losses are not scaled.
        clip_grad_norm: the largest norm of the whole gradient; None: unlimited.
        keep: `Run.keep`.
        outer: builds the optimizer that steps once in a round; None: the run has no rounds.
        inner_state: see `AveragedState`.

    Attributes:
        step: the number of training steps committed and applied.
        rehearsed: this worker has everything loaded and warm.
        initial: the run begins with this worker.
        compares: this worker computes a microbatch twice before it begins, to compare.
        probes: it compares the bits of a microbatch with those of other workers before it begins.
        record: the values and files that the script records of the last step.
        seeds: the seeds of the script's random numbers outside microbatches.
        schedule: the schedule by which the run takes checkpoints.
        round_folders: the directories with the tensors of evaluations; None: the process trains alone.
        iterating: the name of the iteration that the script must complete, such as a step; empty: none.
        digest: the digest of the state, when last computed.
        start_checkpoint: the checkpoint from which this attempt resumes; None: it starts from nothing.
        place: of this process in the data dimension of its worker.

    Raises:
        BadInput: the run cannot train this model with these objects.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        heartbeat: Heartbeat,
        reporter: Reporter,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: LRScheduler | None,
        scaler: GradScaler | None,
        clip_grad_norm: float | None,
        keep: RunKeep,
        outer: OuterOptimizer | None = None,
        inner_state: InnerName = "fresh",
    ) -> None:
        check_arguments(
            model,
            optimizer,
            scheduler=scheduler,
            scaler=scaler,
            clip_grad_norm=clip_grad_norm,
            processes=settings.spec.processes,
            outer=outer,
            inner_state=inner_state,
        )
        self._settings = settings
        self.worker, self.spec = settings.worker, settings.spec
        self.heartbeat, self.reporter, self.keep = heartbeat, reporter, keep
        self._parts = assembly.build_parts(
            settings,
            model,
            optimizer,
            scheduler=scheduler,
            scaler=scaler,
            clip_grad_norm=clip_grad_norm,
            keep=keep,
            outer=outer,
            inner_state=inner_state,
        )
        self.layout, self.state = self._parts.layout, self._parts.state
        self.gradients, self.scaling = self._parts.gradients, self._parts.scaling
        # In a run of rounds the inner steps clip, each by itself.
        self.clip_grad_norm = clip_grad_norm if outer is None else None
        self.step = 0
        self.rehearsed = False
        self.initial = reporter.alone or (settings.resumed is None and settings.worker < settings.spec.start)
        self.compares = self.initial and settings.spec.convergence == "exact"
        self.probes = not reporter.alone and settings.spec.convergence == "exact"
        self.record = StepRecord()
        self.seeds = ScriptSeeds(settings.spec.seed)
        self.schedule = CheckpointSchedule(settings.spec.checkpoints)
        run_dir = settings.run_dir
        self.round_folders = None if run_dir is None else RoundFolders(run_dir.root / GATHERED)
        self.iterating = ""
        self._entered_round = False
        self.digest: Digest | None = None
        self.start_checkpoint: StartingCheckpoint | None = None
        self._reactor: Reactor | None = None
        self._results: ResultPoster | None = None
        self.place = DataPlace(settings.seat.number, settings.seat.processes)

    @property
    def reactor(self) -> Reactor:
        """The thread that drives this worker's protocol.

        Raises:
            BadInput: no step has begun yet.
        """
        if self._reactor is None:
            raise BadInput(
                f"{self.iterating or 'a round'} was begun before the first step",
                means="all workers take part in it, and a worker that joins later would begin it alone",
                do="call run.evaluate and run.checkpoint inside the loop over run.steps, or after it",
            )
        return self._reactor

    @property
    def results(self) -> ResultPoster:
        """The poster of what the training thread computes in a round."""
        assert self._results is not None, "a round begins after the start"
        return self._results

    def choose_place(self, data: object) -> None:
        """Determine which microbatches this process computes; all processes of the worker call this.

        Args:
            data: see `elastane.run.worker.gangs.data_place.find_data_place`.

        Raises:
            BadInput: the model is divided in another way than the microbatches are.
        """
        seat = self._settings.seat
        self.place = find_data_place(data, seat)
        self.gradients.slots.together = self.place.size
        if seat.processes > 1:
            places = [self.place] * seat.processes
            torch.distributed.all_gather_object(places, self.place)
            self.state.get_shards().check_data(places)

    def start(self, plan: BatchPlan, dataset_digest: str, batches: BatchSource) -> None:
        """Start this worker's part of the run; after `end_rehearsal` the coordinator may use this worker.

        Args:
            plan: the division of the dataset into steps and virtual ranks.
            dataset_digest: the digest of the dataset.
            batches: with the digests of the order and of the data of sites.

        Raises:
            StorageError: the checkpoint from which the run resumes cannot be read.
        """
        layout = assembly.build_protocol_layout(self._settings, self._parts, plan, self.place.size)
        self.start_checkpoint = start_checkpoint = assembly.open_starting_checkpoint(
            self._settings, self.state, self.reporter
        )
        if start_checkpoint is not None:
            self.step = start_checkpoint.outcome.step
        member = MemberMachine(self.worker, layout, start_checkpoint.outcome if start_checkpoint else None)
        pinned = assembly.build_pinned(
            self._settings, self._parts, plan, dataset_digest, batches, self.place.size
        )
        if self._settings.origin is not None:
            self._compare_with_origin(self._settings.origin, pinned)
        self._reactor = reactor = self.reporter.connect(
            member,
            self.gradients,
            self.state,
            pinned,
            measure_norms=self.clip_grad_norm is not None or self.scaling is not None,
            sharing=pinned.sharing,
        )
        self._results = ResultPoster(reactor)
        reactor.source = start_checkpoint
        if layout.checkpoints:
            reactor.checkpoints = self.reporter.checkpoint_writer = assembly.build_checkpoint_writer(
                self._settings, self.state, member, self.reporter, reactor.post, pinned
            )
        if self.reporter.alone:
            member_alone = Member(self.worker, "", 0, sites=tuple(sorted(set(plan.rank_sites))))
            reactor.post(events.GenerationProposed(Generation(1, 1, (member_alone,), planned=False)))

    def _compare_with_origin(self, origin: RunOrigin, pinned: Pinned) -> None:
        """Say which settings differ from those of the origin.

        Raises:
            BadInput: the optimizer is another one, so its state cannot be loaded.
        """
        kinds = [settings.partition("(")[0] for settings in (origin.pinned.optimizer, pinned.optimizer)]
        if kinds[0] != kinds[1]:
            raise BadInput(
                f"the optimizer is {kinds[1]}, and {origin} has the state of {kinds[0]}",
                means="the state of one optimizer has no meaning for another",
                do=f"use {kinds[0]}; or start a new run from the exported weights: elastane export",
            )
        if changes := describe_changes(origin, pinned):
            self.reporter.warn("origin", f"differs from {origin}: {changes}", step=origin.step)

    def set_wire(self, wire: WireFormat | None) -> None:
        """Set the format of what rounds exchange; None: the type of the parameters."""
        assert self.state.inner is not None, "only rounds have one"
        self.state.inner.wire = self.gradients.slots.wire = wire

    def add_noise(self, noise: DifferenceNoise) -> None:
        """Let the differences of rounds be clipped and noisy."""
        assert self.state.inner is not None, "only rounds have differences"
        self.state.inner.noise = noise

    def delay_differences(self) -> None:
        """Let rounds exchange differences one round later.

        Raises:
            BadInput: the model has buffers, or virtual ranks average the state of the optimizer.
        """
        assert self.state.inner is not None, "only rounds have differences"
        if self.layout.buffer_extents:
            changing = self.layout.buffer_extents[0].name
            raise BadInput(
                f"run.rounds was given delay=1, and {changing} changes in each round",
                means="only parameters may come one round later than the samples from which they follow",
                do='leave delay out; or use a model without such buffers, and inner_state="fresh"',
            )
        self.state.inner.delayed = True

    def end_rehearsal(self, probe: Probe | None = None) -> None:
        """Report that this worker has rehearsed and is ready, with the bits that it computed."""
        if not self.reporter.alone:
            # Warm up now, so that peers do not wait for it later; a process that trains alone has no peers.
            self.gradients.slots.touch()
            self.state.rehearse(self.gradients.slots.sums)
        self.rehearsed = True
        self.reporter.report_ready(probe)

    def take_script_changes(self) -> None:
        """Add the script's changes since the last step to the state; call this before every round.

        Raises:
            BadInput: the script made a change that a run does not support.
        """
        is_first = not self._entered_round
        if self.initial and is_first:
            check_not_wrapped(self.state.model, self.spec.processes)
            check_process_group(self.spec.processes)
        # A worker of a run that has ended already is ready before its first round, and receives its state.
        self.state.adopt_changes(first=is_first, begins=self.initial, receives=is_first and self.rehearsed)
        self._entered_round = True

    def open_to_script(self, step: int) -> None:
        """Prepare the state for the script's work between two steps, with the same random numbers everywhere.

        Raises:
            BadInput: the script changed state inside the step that may change only between steps.
        """
        self.state.open_to_script()
        self.state.guard.position = ("after step", step)
        self.state.replicated.recorded = ""
        self.gradients.mark_consumed()
        self.seeds.seed_after(self.step)

    def log(self, values: Mapping[str, float]) -> None:
        """Record values of the last step; they are the same on every worker."""
        self.record.log(values)
        self._report_record()

    def add_artifact(self, name: str, written: WrittenFile) -> None:
        """Record a file of the last step; it is the same on every worker."""
        self.record.add_file(name, written)
        self._report_record()

    def _report_record(self) -> None:
        self.state.replicated.recorded = self.record.digest
        self.reporter.steps.update_record(self.record.values, self.record.files)

    @contextmanager
    def iterate_exclusively(self, name: str) -> Iterator[None]:
        """Guard an iteration that the scripts of all workers must complete together.

        Args:
            name: the name of the iteration, such as ``step 3``. If the script leaves it early, the name stays
                in `iterating`.

        Raises:
            BadInput: the script is inside another iteration, or has left one before its end.
        """
        if self.iterating:
            raise BadInput(
                f"{name} was begun inside {self.iterating}, or after {self.iterating} was left early",
                means="all workers iterate each of them together, so the others would wait forever",
                do="iterate each to its end, without break or return, and begin the next one after that",
            )
        self.iterating = name
        yield
        self.iterating = ""

    def create_round(self, kind: events.RoundKind, size: int, *, checkpoint: bool = False) -> WorkerRound:
        """Return the next round, not entered yet; with ``checkpoint`` the run saves the state after it."""
        wanted = checkpoint and self.reporter.checkpoint_writer is not None
        return WorkerRound(
            self.reactor,
            self.heartbeat,
            kind,
            size,
            checkpoint=wanted,
            results=self._results,
            place=self.place,
        )

    def take_checkpoint(self, metrics: Mapping[str, float]) -> None:
        """Take a checkpoint of the present state, in a round without virtual ranks."""
        with self.iterate_exclusively("a checkpoint"):
            self.set_metrics(metrics)
            self.take_script_changes()
            round_ = self.create_round("evaluate", 0, checkpoint=True)
            for _ in round_:
                raise AssertionError("a checkpoint has no virtual ranks")
            self.take_outcome(round_.outcome, self.step)
        self.heartbeat.beat(Phase.USER)

    def set_metrics(self, metrics: Mapping[str, float]) -> None:
        """Set the metrics of the next checkpoint, except infinite ones and NaN, which JSON lacks."""
        recorded = self.state.replicated.metrics
        for name, value in metrics.items():
            # The metric of an earlier checkpoint would be wrong for this one.
            recorded.pop(name, None)
            if math.isfinite(value):
                recorded[name] = value

    def set_evaluation(self, sums: Mapping[str, float]) -> None:
        """Set the totals of an evaluation as metrics, apart from those of `take_checkpoint`."""
        self.set_metrics({EVALUATION + name: value for name, value in sums.items()})

    def apply(self, commit: actions.CommitRound, *, schedule_steps: int = 1) -> AppliedStep:
        """Apply a committed training step, after which the schedule makes its steps."""
        outcome = commit.outcome
        self.gradients.forget()
        # The digests in these votes describe the state before this step.
        self.take_outcome(outcome, outcome.step - 1)
        scale = compute_gradient_scale(outcome, scaling=self.scaling, largest_norm=self.clip_grad_norm)
        # Read before the step: a schedule changes them after it.
        rates = read_learning_rates(self.state.script_optimizer)
        self.state.apply(
            outcome,
            self.gradients.slots.sums,
            commit.held,
            scale=scale.factor,
            virtual_ranks=outcome.filled,
            skipped=scale.skipped,
            schedule_steps=schedule_steps,
        )
        self.step, self.state.replicated.metrics["loss"] = outcome.step, outcome.loss
        self.reactor.post_result(events.Applied())
        return AppliedStep(scale.norm, scale.skipped, rates)

    def take_outcome(self, outcome: RoundOutcome, step: int) -> None:
        """Take the digests of the state after a step, which the votes of any later round may carry."""
        if self.round_folders is not None:
            self.round_folders.remove_before(outcome.round)
        if len(outcome.digests.keys() - {REPLICATED_BLOCK}) == len(self.layout.blocks):
            self.digest = combine_digests(outcome.digests)
            self.reporter.steps.set_digest(step, self.digest)
            if self._settings.origin is not None and step == self._settings.origin.step:
                # No line of this run's ledger has it.
                self.reporter.report_digest("origin-digest", self.digest, step)

    def settle(self) -> None:
        """Make the last round, in which all workers agree on the digest of the finished state."""
        with self.iterate_exclusively("the end of the run"):
            self.take_script_changes()
            round_ = self.create_round("settle", 0)
            for _ in round_:
                raise AssertionError("settling has no virtual ranks")
            self.take_outcome(round_.outcome, self.step)
        self.state.guard.remove()
        self.gradients.forget()
        self.reporter.report_complete()
        self.heartbeat.beat(Phase.FINISHED)


def read_learning_rates(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the learning rates of the groups: only one if all are equal; none if a group lacks one."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    numbers = [float(rate) for rate in rates if isinstance(rate, int | float | torch.Tensor)]
    if len(numbers) < len(rates) or not all(map(math.isfinite, numbers)):
        return ()
    return tuple(numbers[:1] if len(set(numbers)) == 1 else numbers)


# -- the schedule by which a run takes checkpoints -------------------------------------------------------


class CheckpointSchedule:
    """The steps and events after which a policy requests a checkpoint.

    Args:
        policy: the policy of the run; None: the run has no checkpoints.

    Attributes:
        each_epoch: take a checkpoint at the end of each epoch.
        each_evaluation: take a checkpoint after each evaluation.
    """

    def __init__(self, policy: CheckpointPolicy | None) -> None:
        self._every_steps = policy.every_steps if policy is not None else None
        self.each_epoch = policy is not None and policy.each_epoch
        self.each_evaluation = policy is not None and policy.each_evaluation

    def is_due_after(self, step: int) -> bool:
        """Return whether the state after this training step becomes a checkpoint."""
        return self._every_steps is not None and step % self._every_steps == 0
