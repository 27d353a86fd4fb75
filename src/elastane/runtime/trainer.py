"""All that training a model takes, kept together: its state, its rounds and whom to tell."""

import hashlib
import json
import math
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import elastane
from elastane.api.checkpoints import EVALUATION, Retention, WrittenFile
from elastane.api.errors import BadInput
from elastane.api.heartbeat_file import Phase
from elastane.api.membership import Generation, Member
from elastane.api.records import Digest, EventLine
from elastane.api.spec import Pinned
from elastane.protocol import actions, events
from elastane.protocol.layout import REST_BLOCK, Layout
from elastane.protocol.member_machine import MemberMachine
from elastane.protocol.messages import RoundOutcome
from elastane.protocol.sampling import derive_random_key
from elastane.runtime.arguments import check_arguments, check_not_wrapped, check_process_group
from elastane.runtime.checkpoints.contents import find_host_keys
from elastane.runtime.checkpoints.starting_checkpoint import StartingCheckpoint
from elastane.runtime.checkpoints.writer import CheckpointWriter, PlainState
from elastane.runtime.data.batch_sources import BatchPlan, seed_everything
from elastane.runtime.finished.model_writer import check_writable
from elastane.runtime.heartbeat import Heartbeat
from elastane.runtime.reactor import Reactor
from elastane.runtime.reporter import Reporter
from elastane.runtime.state import devices
from elastane.runtime.state.gradients import Gradients
from elastane.runtime.state.loss_scaling import LossScaling
from elastane.runtime.state.model_layout import ModelLayout, check_dense
from elastane.runtime.state.optimizer_shards import is_of_torch
from elastane.runtime.state.placement import choose_placement
from elastane.runtime.state.run_keep import RunKeep
from elastane.runtime.state.state import TrainingState, combine_digests
from elastane.runtime.step_record import StepRecord
from elastane.runtime.worker_round import WorkerRound
from elastane.runtime.worker_settings import WorkerSettings
from elastane.storage.catalog import Catalog
from elastane.storage.urls import open_storage

BETWEEN, AHEAD = 1 << 32, 1 << 33
"""Count as the virtual rank of what is drawn after a step, and ahead of the microbatches of the next."""

CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_
PORTION_BYTES, EVERYTHING_BYTES = 16 << 20, 1 << 62


class AppliedStep(msgspec.Struct, frozen=True):
    """How a committed step was taken.

    Args:
        norm: of the gradient before clipping; None unless it is clipped.
        skipped: the scaled gradient overflowed, so the optimizer did not run.
        learning_rates: see `elastane.api.records.LedgerLine`.
    """

    norm: float | None
    skipped: bool
    learning_rates: tuple[float, ...] = ()


class Trainer:
    """One worker's copy of the training.

    Args:
        here: where this process takes part.
        heartbeat: moved by the training thread.
        reporter: the way to the coordinator.
        model: as given to ``prepare``.
        optimizer: likewise.
        scheduler: likewise.
        scaler: likewise; None or a disabled one: losses are not scaled.
        clip_grad_norm: largest norm of the whole gradient; None: unlimited.
        keep: what the script keeps.

    Attributes:
        step: training steps committed and applied.
        rehearsed: this worker has everything loaded and warm.
        initial: the run begins with this worker.
        compares: it computes a microbatch twice before it begins, to compare.
        record: what the script records of the step just made.
        iterating: what the script is iterating, such as a step, and must iterate to its end; empty: nothing.
        digest: of the state, when last computed.
    """

    def __init__(
        self,
        here: WorkerSettings,
        heartbeat: Heartbeat,
        reporter: Reporter,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: LRScheduler | None,
        scaler: GradScaler | None,
        clip_grad_norm: float | None,
        keep: RunKeep,
    ) -> None:
        check_arguments(model, optimizer, scheduler=scheduler, scaler=scaler, clip_grad_norm=clip_grad_norm)
        self._here = here
        self.worker, self.spec = here.worker, here.spec
        self.heartbeat, self.reporter = heartbeat, reporter
        self.layout = ModelLayout(model, optimizer)
        check_dense(self.layout)
        check_writable(model)
        exact = here.spec.convergence == "exact"
        if exact:
            devices.pin_kernels(self.layout.device)
        placement = choose_placement(self.layout)
        self.gradients = Gradients(self.layout, exact=exact, carrier=placement.carrier)
        self.scaling = (
            LossScaling(scaler, optimizer, self.layout.device)
            if scaler is not None and scaler.is_enabled()
            else None
        )
        self.keep = keep
        self.state = TrainingState(
            model,
            optimizer,
            scheduler,
            self.layout,
            copies=here.spec.copies,
            placement=placement,
            scaling=self.scaling,
            keep=keep,
        )
        # Refuses now what the first vote could not carry.
        self.state.rest.replicated()
        self.clip_grad_norm = clip_grad_norm
        self.step = 0
        self.rehearsed = False
        self.initial = reporter.alone or (here.resumed is None and here.worker < here.spec.start)
        self.compares = self.initial and exact
        self.record = StepRecord()
        self.iterating = ""
        self._evaluations = 0
        self._stepped = False
        self.digest: Digest | None = None
        self.origin: StartingCheckpoint | None = None
        self._reactor: Reactor | None = None

    @property
    def reactor(self) -> Reactor:
        """Carries out this worker's protocol.

        Raises:
            BadInput: no step has begun yet.
        """
        if self._reactor is None:
            raise BadInput(
                "evaluate was called before the first step",
                means="a worker that joins later would have to do it again",
                do="evaluate inside the loop over run.steps, or after it",
            )
        return self._reactor

    def start(self, plan: BatchPlan, dataset_digest: str) -> None:
        """Begin to take part: once rehearsed, the coordinator may count on this worker."""
        layout = Layout(
            virtual_ranks=plan.virtual_ranks,
            blocks=len(self.layout.blocks),
            units=self.state.units,
            unit_bytes=self.state.shards.unit_bytes,
            copies=self.spec.copies,
            # An optimizer of the user's may couple parameters: a joiner runs it once it has all of its state.
            fetch_bytes=PORTION_BYTES if is_of_torch(self.state.optimizer) else EVERYTHING_BYTES,
            digest_every=self.spec.digest_every,
            compared=self.spec.convergence == "exact",
            checkpoints=self._here.run_dir is not None and self.spec.checkpoints is not None,
        )
        self.origin = origin = self._origin()
        member = MemberMachine(self.worker, layout, origin.outcome if origin else None)
        self._reactor = self.reporter.connect(
            member,
            self.gradients,
            self.state,
            self._pinned(plan, dataset_digest),
            measure_norms=self.clip_grad_norm is not None or self.scaling is not None,
        )
        self._reactor.source = origin
        if layout.checkpoints:
            self._reactor.checkpoints = self.reporter.taker = self._taker(member)
        if self.reporter.alone:
            me = Member(self.worker, "", 0)
            self._reactor.post(events.GenerationProposed(Generation(1, 1, (me,), planned=False)))

    def ready(self) -> None:
        """The rehearsal is over."""
        if not self.reporter.alone:
            # A process that trains alone keeps no other one waiting.
            self.gradients.touch()
            self.state.rehearse(self.gradients.sums)
        self.rehearsed = True
        self.reporter.ready()

    def before_step(self) -> None:
        """Take over what the script has changed since the last step; before any round is entered.

        Raises:
            BadInput: it has changed what a run cannot change.
        """
        if self.initial and not self._stepped:
            check_not_wrapped(self.state.model)
            check_process_group()
        self.state.take_changes(first=not self._stepped, begins=self.initial)
        self._stepped = True

    def after_step(self, step: int) -> None:
        """Let the script begin what it does between two steps, with the same random numbers everywhere.

        Raises:
            BadInput: it has changed inside the step what is changed between steps only.
        """
        self.state.open_to_script()
        self._evaluations = 0
        self.state.guard.position = ("after step", step)
        self.state.rest.recorded = ""
        self.gradients.refuse()
        self.seed_between()

    def log(self, values: Mapping[str, float]) -> None:
        """Record values of the step just made, the same on every worker."""
        self.record.log(values)
        self._recorded()

    def add_artifact(self, name: str, written: WrittenFile) -> None:
        """Record a file of the step just made, the same on every worker."""
        self.record.add_file(name, written)
        self._recorded()

    def _recorded(self) -> None:
        self.state.rest.recorded = self.record.digest
        self.reporter.recorded(self.record.values, self.record.files)

    def seed_ahead(self, step: int) -> None:
        """Seed what the script draws ahead of the microbatches of a step."""
        seed_everything(derive_random_key(self.spec.seed, step, AHEAD))

    def seed_between(self) -> None:
        """Seed what the script draws between two steps; after each evaluation anew."""
        seed_everything(derive_random_key(self.spec.seed, self.step, BETWEEN + self._evaluations))

    def seed_evaluation(self, virtual_rank: int) -> None:
        """Seed the random numbers of one virtual rank of an evaluation."""
        key = derive_random_key(self.spec.seed, self.step, BETWEEN + self._evaluations)
        seed_everything(derive_random_key(key, self.step, virtual_rank))

    def end_evaluation(self) -> None:
        """An evaluation is over."""
        self._evaluations += 1
        self.seed_between()

    @contextmanager
    def iterated(self, what: str) -> Iterator[None]:
        """Around what the script iterates together with the scripts of all workers.

        Args:
            what: it iterates, such as ``step 3``; left early, it stays in `iterating`.

        Raises:
            BadInput: the script is inside another one, or has left it before its end.
        """
        if self.iterating:
            raise BadInput(
                f"{what} was begun inside {self.iterating}, or after that had been left before its end",
                means="all workers iterate each of them together, so the others would wait for ever",
                do="iterate each to its end, without break or return, and begin the next one after that",
            )
        self.iterating = what
        yield
        self.iterating = ""

    def round(self, kind: events.RoundKind, size: int, *, checkpoint: bool = False) -> WorkerRound:
        """The next round, not yet entered; with ``checkpoint``, the state after it is to be kept."""
        wanted = checkpoint and self.keeps_checkpoints
        return WorkerRound(self.reactor, self.heartbeat, kind, size, checkpoint=wanted)

    @property
    def keeps_checkpoints(self) -> bool:
        return self.reporter.taker is not None

    @property
    def keeps_epochs(self) -> bool:
        """Whether the state at the end of each epoch is to be kept."""
        return self.spec.checkpoints is not None and self.spec.checkpoints.each_epoch

    def keeps_after(self, step: int) -> bool:
        """Whether the state after a training step is to be kept whatever happens."""
        every = self.spec.checkpoints.every_steps if self.spec.checkpoints is not None else None
        return every is not None and step % every == 0

    def checkpoint(self, metrics: Mapping[str, float]) -> None:
        """Keep the state as it is now: a round of its own, in which nobody computes anything."""
        with self.iterated("a checkpoint"):
            self.measured(metrics)
            self.before_step()
            round_ = self.round("evaluate", 0, checkpoint=True)
            for _ in round_:
                raise AssertionError("a checkpoint has no virtual ranks")
            self.committed(round_.outcome)
        self.heartbeat.beat(Phase.USER)

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Figures that checkpoints are told apart by; JSON has none that is not finite."""
        known = self.state.rest.metrics
        for name, value in metrics.items():
            # That of an earlier checkpoint would not be true of this one.
            known.pop(name, None)
            if math.isfinite(value):
                known[name] = value

    def evaluated(self, sums: Mapping[str, float]) -> None:
        """Totals of an evaluation: apart from the step's loss and from what `checkpoint` was given."""
        self.measured({EVALUATION + name: value for name, value in sums.items()})

    def apply(self, commit: actions.CommitRound) -> AppliedStep:
        """Take a committed training step."""
        outcome = commit.outcome
        self.gradients.forget()
        # Digests in these votes are of the state before this step.
        self.committed(outcome)
        skipped = self._overflowed(outcome)
        scale, norm = (1.0, None) if skipped else self._scale(outcome)
        # Before the step, for a schedule changes them after it.
        rates = read_learning_rates(self.state.optimizer)
        self.state.apply(
            outcome,
            self.gradients.sums,
            commit.held,
            scale=scale,
            virtual_ranks=outcome.filled,
            skipped=skipped,
        )
        self.step, self.state.rest.metrics["loss"] = outcome.step, outcome.loss
        self.reactor.post(events.Applied())
        return AppliedStep(norm, skipped, rates)

    def committed(self, outcome: RoundOutcome) -> None:
        """Take note of what the outcome of any round may bring."""
        if len(outcome.digests.keys() - {REST_BLOCK}) == len(self.layout.blocks):
            self.digest = combine_digests(outcome.digests)
            self.reporter.digested(self.step, self.digest)

    def settle(self) -> None:
        """A last round, in which all agree on the digest of the finished state."""
        with self.iterated("the end of the run"):
            self.before_step()
            round_ = self.round("settle", 0)
            for _ in round_:
                raise AssertionError("settling has no virtual ranks")
            self.committed(round_.outcome)
        self.state.guard.remove()
        self.gradients.forget()
        self.reporter.settled()
        self.heartbeat.beat(Phase.FINISHED)

    def _overflowed(self, outcome: RoundOutcome) -> bool:
        """Some element of the scaled gradient is not finite: the norm of the whole one is not then."""
        norm = outcome.norm_squared
        return self.scaling is not None and norm is not None and not math.isfinite(norm)

    def _scale(self, outcome: RoundOutcome) -> tuple[float, float | None]:
        """Factor of every gradient, and the gradient's norm if it is clipped."""
        divided = 1.0 / outcome.weight if outcome.weighted and outcome.weight else 1.0
        if self.scaling is not None:
            divided *= self.scaling.inverse
        if self.clip_grad_norm is None or outcome.norm_squared is None:
            return divided, None
        norm = math.sqrt(outcome.norm_squared) * divided
        return divided * min(1.0, self.clip_grad_norm / (norm + CLIP_EPSILON)), norm

    # -- checkpoints ---------------------------------------------------------------------------------------

    def _catalog(self) -> Catalog:
        policy, run_dir = self.spec.checkpoints, self._here.run_dir
        assert policy is not None and run_dir is not None, "asked for with checkpoints only"  # noqa: S101, PT018
        inside = None if policy.url else run_dir.root
        return Catalog(open_storage(policy.root(run_dir), inside))

    def _origin(self) -> "StartingCheckpoint | None":
        """The checkpoint this attempt of the run began with."""
        resumed = self._here.resumed
        if resumed is None or not resumed.checkpoint:
            return None
        origin = StartingCheckpoint(self._catalog(), resumed.checkpoint, self.state, self._restored)
        self.step = origin.outcome.step
        return origin

    def _restored(self, nbytes: int, seconds: float) -> None:
        name = self._here.resumed.checkpoint if self._here.resumed is not None else ""
        rate = nbytes / 1e9 / seconds if seconds else 0.0
        line = EventLine(
            time=0.0,
            kind="checkpoint.restored",
            who=f"worker {self.worker}",
            why=f"{name}: {nbytes / 1e6:.1f} MB in {seconds:.2f} s, {rate:.2f} GB/s",
            step=self.step,
            workers=(self.worker,),
            detail={"name": name, "bytes": nbytes, "seconds": seconds},
        )
        self.reporter.happened(f"restored-{self.worker}-{time.time_ns()}", line)

    def _taker(self, member: MemberMachine) -> CheckpointWriter:
        policy, resumed = self.spec.checkpoints, self._here.resumed
        assert policy is not None, "asked for with checkpoints only"  # noqa: S101

        def describe() -> PlainState:
            plain = {
                # The tensors it refers to are written beside: see `contents.entries`.
                "rest": json.dumps(self.state.rest.describe()[0]),
                "on_host": find_host_keys(self.state),
                "cursors": member.outcome.cursors if member.outcome is not None else {},
                # Whoever resumes from the last checkpoint of a script that has ended writes the model.
                "ending": self.reporter.ending,
            }
            return PlainState(plain, dict(self.state.rest.metrics))

        return CheckpointWriter(
            self.worker,
            self.state,
            self._catalog(),
            resumed=resumed.times if resumed is not None else 0,
            retention=Retention(
                last=policy.keep_last,
                every=policy.keep_every,
                best=policy.keep_best,
                origin=resumed.checkpoint if resumed is not None else "",
            ),
            describe=describe,
            snapped=lambda ticket: self.reactor.post(events.SnapshotTaken(ticket)),
            kept=self.reporter.tell,
            changed=self.reporter.changed,
            refused=lambda refused: self.reactor.post(events.StorageRefused(refused)),
        )

    def _pinned(self, plan: BatchPlan, dataset_digest: str) -> Pinned:
        script = Path(self.spec.script)
        text = script.read_bytes() if script.is_file() else b""
        return Pinned(
            script_digest=hashlib.sha256(text).hexdigest(),
            virtual_ranks=plan.virtual_ranks,
            global_batch=plan.global_batch,
            microbatch=plan.microbatch,
            dataset_length=plan.length,
            dataset_digest=dataset_digest,
            steps=plan.steps,
            seed=self.spec.seed,
            threads=self.spec.threads,
            convergence=self.spec.convergence,
            copies=self.spec.copies,
            parameters=self.layout.elements,
            blocks=len(self.layout.blocks),
            layout_digest=self.layout.digest(),
            optimizer=_describe(self.state.optimizer),
            versions={
                "elastane": elastane.__version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "device": devices.describe_device(self.layout.device),
            },
        )


def read_learning_rates(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the learning rates of the groups: one if all are equal, none if a group has none."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    numbers = [float(rate) for rate in rates if isinstance(rate, int | float | torch.Tensor)]
    if len(numbers) < len(rates) or not all(map(math.isfinite, numbers)):
        return ()
    return tuple(numbers[:1] if len(set(numbers)) == 1 else numbers)


def _describe(optimizer: Optimizer) -> str:
    defaults = ", ".join(f"{key}={value!r}" for key, value in sorted(optimizer.defaults.items()))
    return f"{type(optimizer).__name__}({defaults})"
