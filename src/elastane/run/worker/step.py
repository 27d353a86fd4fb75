"""One training step: an iterator over the microbatches of this worker's virtual ranks."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from elastane.common.errors import BadInput
from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.nouns.spec import Probe
from elastane.run.protocol import events
from elastane.run.protocol.messages import Leaf, PartialSum
from elastane.run.worker.arguments import check_scalers, list_used_scalers
from elastane.run.worker.cuda_graphs import check_not_capturing
from elastane.run.worker.data.batch_sources import Batch, BatchPlan, BatchSource
from elastane.run.worker.data.epoch_order import build_order_error
from elastane.run.worker.exhaustion import exit_for_replacement
from elastane.run.worker.gathered_values import GatheredValues
from elastane.run.worker.late_losses import LateLoss
from elastane.run.worker.losses import (
    build_no_microbatch_error,
    build_unused_microbatch_error,
    check_loss,
    check_summed,
    check_weight,
    explain_second_pass,
)
from elastane.run.worker.spot_checks import SpotCheckPass
from elastane.run.worker.state.devices import LateNumber
from elastane.run.worker.state.run_keep import do_nothing
from elastane.run.worker.step_record import check_unused_names, compute_means, weigh_values
from elastane.run.worker.step_rehearsal import StepRehearsal
from elastane.run.worker.trainer import Trainer
from elastane.run.worker.worker_round import WorkerRound


class TrainingStep:
    """One training step; iterate over it for the microbatches that this worker computes.

    A worker's first iteration begins with a rehearsal: it computes a microbatch and drops the gradients, so
    that everything is loaded and warm before other workers wait for this one. At the beginning of a run it
    computes the microbatch twice, to check that the script's loop computes the same each time.

    Attributes:
        begun: the script has begun to iterate over the step.
        ended: the step is complete: all workers have committed it, and this worker has applied it.
        loss: the loss of the whole step, the same on every worker; known after the iteration.
        norm: the norm of its gradient before clipping; None unless the run clips gradients.
        learning_rates: see `elastane.run.nouns.records.LedgerLine`.
        workers: the workers that computed its microbatches.
        gathered: the numbers of each microbatch, which all workers have after the iteration.
        stopped: the run stops after this step.
        cut_short: the user stopped the run before its last step.
        skipped: the scaled gradient overflowed, so the step did not change the parameters.
        last: the loop over the steps ends after this step.
        ended_epoch: with this step, the run has seen every sample of the epoch.
        means: the means over samples of the values that microbatches logged, the same on every worker.
        samples: the number of samples in the step.
    """

    def __init__(self, trainer: Trainer, plan: BatchPlan, source: BatchSource) -> None:
        self._trainer = trainer
        self._plan = plan
        self._source = source
        self._number = trainer.step + 1
        self._rehearsal: StepRehearsal | None = None
        self._pending_leaf: Leaf | None = None
        self._computed_leaf: Leaf | None = None
        # `TrainingState.read_versions` at the first microbatch.
        self._versions: list[int] | None = None
        # The loss of the computed leaf, if a device still computes it.
        self._late_loss: LateLoss | None = None
        self.begun = self.ended = False
        self._number_read = False
        self._round: WorkerRound | None = None
        self._restore_state: Callable[[], None] = do_nothing
        self._logged: dict[str, float] = {}
        self._present: tuple[int, Any] = (0, None)
        self._counts: dict[int, float] = {}
        self.gathered = GatheredValues()
        if not trainer.rehearsed and not trainer.initial:
            trainer.keep.before_read = self._learn_number
        self.loss = math.nan
        self.norm: float | None = None
        self.learning_rates: tuple[float, ...] = ()
        self.workers: tuple[int, ...] = ()
        self.stopped = self.cut_short = self.skipped = self.last = self.ended_epoch = False
        self.means: dict[str, float] = {}
        self.samples = 0

    @property
    def number(self) -> int:
        """The number of the step, from 1."""
        self._learn_number()
        return self._number

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 0."""
        self._learn_number()
        return self._source.find_epoch(self._number)

    @property
    def virtual_rank(self) -> int:
        """The virtual rank of the microbatch that the script computes now."""
        return self._present[0]

    @property
    def rehearses(self) -> bool:
        """The current microbatch is computed for the rehearsal, which leaves no trace."""
        return self._rehearsal is not None

    @property
    def under_way(self) -> bool:
        """The script is inside the loop over the step, or has left it early."""
        return self.begun and not self.ended

    def _learn_number(self) -> None:
        """Determine the number of the step, if the script reads it before its inner loop.

        A worker that joins learns the number with its first round. So it joins first, and computes its first
        microbatch without a rehearsal.
        """
        trainer = self._trainer
        if self.begun:
            return
        self._number_read = True
        trainer.keep.before_read = do_nothing
        if trainer.rehearsed or trainer.initial:
            return
        trainer.take_script_changes()
        trainer.end_rehearsal()
        self._round = round_ = self._enter(newcomer=True)
        round_.begin_now()
        self._number = round_.step
        # The state has the changes that other workers' scripts made before their inner loops.
        self._restore_state = trainer.state.snapshot()
        trainer.seeds.seed_ahead(self._number)
        trainer.heartbeat.beat(Phase.USER)

    def _enter(self, *, newcomer: bool) -> WorkerRound:
        trainer = self._trainer
        round_ = trainer.create_round(
            "train", self._plan.virtual_ranks, checkpoint=trainer.schedule.is_due_after(trainer.step + 1)
        )
        round_.newcomer = newcomer
        return round_

    def __iter__(self) -> Iterator[Any]:
        if self.begun:
            raise BadInput(
                f"step {self._number} was iterated twice",
                means="a step computes each of its microbatches once",
                do="loop over the step once, and compute several losses in the same iteration",
            )
        with self._trainer.iterate_exclusively("a step"):
            yield from self._iterate_microbatches()
        self._apply()

    def _iterate_microbatches(self) -> Iterator[Any]:
        trainer = self._trainer
        trainer.keep.before_read = do_nothing
        newcomer = not trainer.rehearsed
        if self._round is None:
            trainer.take_script_changes()
        else:
            self._restore_state()
        if newcomer:
            self.begun = trainer.keep.locked = True
            yield from self._rehearse()
        self.begun = trainer.keep.locked = True
        round_ = self._round = self._round or self._enter(newcomer=newcomer)
        self._versions = None
        for rank in round_:
            self._check_number(round_.step)
            if round_.recomputes and not self._source.can_check(rank):
                round_.finish_leaf(Leaf(rank, trainer.worker))
            else:
                yield from self._compute_rank(round_, rank)

    def _compute_rank(self, round_: WorkerRound, rank: int) -> Iterator[Any]:
        """Let the script compute a virtual rank, and report it."""
        trainer = self._trainer
        batch = self._load_batch(round_, rank, () if round_.recomputes else (rank, *round_.waiting))
        # A worker that joins has its values only after the round has begun.
        if self._versions is None:
            trainer.state.forget_gathered()
            self._versions = trainer.state.read_versions()
        began_s = time.perf_counter()
        check = SpotCheckPass(trainer.state, trainer.gradients) if round_.recomputes else None
        announcer = Announcer(trainer, round_.assignment)
        if check is None:
            checked, announce = rank == round_.checked, announcer if round_.is_last else None
            trainer.gradients.begin_leaf(rank, announce, round_.following, checked=checked)
        checksum, cursor = batch.checksum, batch.cursor
        leaf = Leaf(rank, trainer.worker, samples=batch.samples, checksum=checksum, cursor=cursor)
        if not batch.samples:
            changes = trainer.state.buffers.make_zeros()
        else:
            self._pending_leaf, self._logged = leaf, {}
            self._present = rank, batch.inputs
            self.gathered.begin()
            trainer.state.replicated.caches.put_back()
            trainer.state.guard.position = ("step", self._number, rank, began_s)
            yield batch.inputs
            leaf = self._take_computed()
            trainer.state.check_versions(self._versions)
            trainer.state.replicated.restore_flags()
            changes = trainer.state.buffers.take_changes()
        end = trainer.gradients.end_leaf if check is None else check.end
        untouched, fingerprints = end(changes)
        if check is None and round_.waiting:
            # Peers add up complete nodes of the tree while this worker computes on.
            trainer.gradients.slots.announce_early((rank, *round_.waiting), announcer.announce)
        round_.seconds["compute"] += time.perf_counter() - began_s
        leaf = msgspec.structs.replace(leaf, untouched=untouched, fingerprints=fingerprints)
        late_loss, self._late_loss = self._late_loss, None
        round_.finish_leaf(leaf, late_loss)

    def _load_batch(self, round_: WorkerRound, rank: int, expected: Sequence[int]) -> Batch:
        """Load a microbatch, and seed its random numbers.

        Args:
            rank: the number of the microbatch in the step.
            expected: those that this worker will load in this round, this one first.
        """
        assert round_.begin is not None, "a round begins before it is computed"
        heartbeat = self._trainer.heartbeat
        with round_.measure("deal"):
            heartbeat.beat(Phase.DATA)
            self._source.expect(round_.begin, expected)
            order = self._source.describe_order(self._number)
            if not self._trainer.state.replicated.take_order(order):
                raise build_order_error(self.epoch)
            batch = self._source.load(self._number, rank)
            heartbeat.beat(Phase.COMPUTE)
        return batch

    def _check_number(self, number: int) -> None:
        """Replace this worker if its script has read a number other than that of the round."""
        if self._number_read and number != self._number:
            exit_for_replacement(
                f"the script read step number {self._number}, but this worker joins the run at step {number}"
            )
        self._number = number

    def backward(
        self, loss: torch.Tensor, *, weight: float | torch.Tensor | None = None, summed: bool = False
    ) -> None:
        """Run the backward pass of the current microbatch.

        Args:
            loss: scalar; the mean over the microbatch's samples, or, with ``weight``, the sum.
            weight: the weight of this microbatch, such as its number of tokens. The step divides its gradient
                by the sum of all weights.
            summed: the loss is a term of the step's loss, which is the sum of the losses of all microbatches;
                the step does not divide its gradient.

        Raises:
            BadInput: the loss or the weight is invalid, or the microbatch has had its backward pass.
            RunFailed: the loss is not finite. On a GPU the loop over the step raises it, and an invalid
                weight, a little later.
        """
        loss = check_loss(loss)
        check_not_capturing(loss)
        checked_weight = None if weight is None else check_weight(weight)
        if summed:
            samples = self._source.count_samples(self._plan.began_at.step + 1)
            check_summed(samples, is_weighted=checked_weight is not None)
        try:
            self._backward(loss, checked_weight, summed=summed)
        except RuntimeError as error:
            refusal = explain_second_pass(error)
            if refusal is not None:
                raise refusal from None
            raise

    def _backward(self, loss: torch.Tensor, weight: float | LateNumber | None, *, summed: bool) -> None:
        if self._rehearsal is not None:
            self._rehearsal.backward(loss)
            return
        leaf, self._pending_leaf = self._pending_leaf, None
        if leaf is None:
            raise build_no_microbatch_error()
        late_value = LateNumber(loss)
        count = self._source.count_samples(self._number)
        by_samples = weight is None and count is None
        if by_samples:
            # The number of samples in a stream's step is known when all are loaded: divide by it then.
            self._run_backward(loss * leaf.samples)
        elif weight is None and not summed:
            assert count is not None, "decided above"
            # A product: if a gradient is passed, torch imports its symbolic shapes, which takes 0.3 s.
            self._run_backward(loss * (leaf.samples / count))
        else:
            self._run_backward(loss)
        self._late_loss = LateLoss(late_value, self._number, weight, by_samples, count if summed else None)
        self._computed_leaf = leaf
        if self._late_loss.has_arrived:
            self._computed_leaf, self._late_loss = self._late_loss.put_into(leaf), None

    def _run_backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of a loss, scaled if the run scales losses."""
        scaling = self._trainer.scaling
        self._trainer.gradients.backward(loss if scaling is None else scaling.scale_loss(loss))

    def count(self, measure: Callable[[Any], float | torch.Tensor]) -> float:
        """Return the sum of a measure over all microbatches of the step, before they are computed.

        A loss may need it, such as the number of tokens of the whole step. Call it first in the inner loop.
        Each worker loads every microbatch of the step for it; without a collate function that is cheap.

        Args:
            measure: takes a microbatch, as collated, and returns a number.

        Raises:
            BadInput: the run reads a stream.
        """
        number = self._number if self._rehearsal is None else self._plan.began_at.step + 1
        if number not in self._counts or self._rehearsal is not None:
            batches = self._source.load_step(number, present=self._present)
            self._counts[number] = math.fsum(float(measure(batch)) for batch in batches)
        return self._counts[number]

    def log(self, values: dict[str, float]) -> None:
        """Record values of the current microbatch; the step gets their mean over its samples.

        Raises:
            BadInput: no microbatch is current, or it has a value of this name already.
        """
        if self._rehearsal is not None:
            self._rehearsal.log(values)
            return
        if self._pending_leaf is None and self._computed_leaf is None:
            raise BadInput(
                "run.log was called in a step, but outside the loop over its microbatches",
                means="a value logged in a step belongs to a microbatch",
                do="call run.log in the loop over the step, or after it",
            )
        check_unused_names(self._logged, values)
        self._logged.update(values)

    def check_ended(self) -> None:
        """Refuse a step that the script has left early.

        Raises:
            BadInput: the script has left it early.
        """
        if not self.ended:
            raise BadInput(
                f"step {self._number} was not iterated to its end",
                means="the samples of the step would be lost, and the other workers would wait forever",
                do="loop over the whole step, without break or return",
            )

    def _take_computed(self) -> Leaf:
        leaf, self._computed_leaf = self._computed_leaf, None
        if leaf is None:
            raise build_unused_microbatch_error(f"step {self._number}: ")
        sums = self.gathered.take(leaf.virtual_rank)
        if self._logged:
            sums |= weigh_values(self._logged, leaf.samples)
        return msgspec.structs.replace(leaf, sums=sums) if sums else leaf

    def _rehearse(self) -> Iterator[Any]:
        trainer = self._trainer
        rehearsal = self._rehearsal = StepRehearsal(
            trainer.state, trainer.gradients, compared=trainer.compares, probed=trainer.probes
        )
        scalers = list_used_scalers() if trainer.initial else []
        for pass_number, between in enumerate((False, True, False) if trainer.compares else (False,)):
            # Load it again: the dataset must return the same, and a script may change its batch in place.
            inputs = self._load_first_batch(after=self._present[0] if between else -1)
            if inputs is None:
                continue
            self.gathered.begin()
            trainer.state.guard.position = ("rehearsal", pass_number)
            trainer.heartbeat.beat(Phase.STARTING)
            rehearsal.begin(between=between)
            yield self._build_rehearsed(inputs)
            rehearsal.end()
            trainer.heartbeat.beat(Phase.STARTING, like=Phase.COMPUTE)
        self._rehearsal = None
        if trainer.initial:
            check_scalers(scalers)
        probe = self._build_probe(rehearsal)
        rehearsal.leave_no_trace()
        trainer.end_rehearsal(probe)

    def _build_probe(self, rehearsal: StepRehearsal) -> Probe | None:
        """Return the bits of a rehearsed microbatch, for other workers to compare."""
        return rehearsal.build_probe(self._present[0])

    def _build_rehearsed(self, inputs: Any) -> Any:
        """Return what the script gets for a rehearsed microbatch."""
        return inputs

    def _load_first_batch(self, *, after: int = -1) -> Any:
        """Return the first microbatch with samples after a virtual rank; None: no later one has samples.

        Args:
            after: the virtual rank; -1: begin with the first one.

        Raises:
            BadInput: no microbatch of the first step has samples.
        """
        for rank in range(after + 1, self._plan.virtual_ranks):
            batch = self._source.load(self._plan.began_at.step + 1, rank)
            if batch.samples:
                self._present = rank, batch.inputs
                return batch.inputs
        if after >= 0:
            return None
        raise BadInput(
            "the stream is empty",
            means="no shard has a sample to train on",
            do="check that the function or dataset given to run.steps yields samples",
        )

    def _count_schedule_steps(self) -> int:
        """Return the number of steps that the schedule makes after this step."""
        return 1

    def _apply(self) -> None:
        round_ = self._round
        assert round_ is not None, "the microbatches are computed in a round"
        begin = round_.begin
        assert round_.commit is not None, "a round that has ended is committed"
        assert begin is not None, "and it has begun before that"
        outcome = round_.outcome
        self._number = outcome.step
        self._trainer.heartbeat.beat(Phase.COMPUTE)
        with round_.measure("apply"):
            applied = self._trainer.apply(round_.commit, schedule_steps=self._count_schedule_steps())
        round_.wait_for_release()
        self._trainer.open_to_script(outcome.step)
        self.loss, self.stopped, self.skipped = outcome.loss, outcome.stop, applied.skipped
        self.norm, self.learning_rates = applied.norm, applied.learning_rates
        self.workers = tuple(sorted(outcome.shares))
        self.gathered.complete(outcome.sums)
        finished = self._source.is_finished(outcome)
        self.last, self.cut_short = finished or outcome.stop, outcome.stop and not finished
        self.ended_epoch = self._source.has_ended_epoch(outcome)
        self.ended = True
        self._trainer.keep.locked = False
        self.means, self.samples = compute_means(outcome.sums), outcome.samples
        self._trainer.record.begin(self.means)
        due = outcome.step % self._trainer.spec.digest_every == 0 or self.last
        self._trainer.reporter.report_step(
            round_,
            self._source.describe_samples(outcome, begin.cursors),
            applied.norm,
            digest_due=due,
            skipped=applied.skipped,
            learning_rates=applied.learning_rates,
            logged=self.means,
        )
        # The script goes on, perhaps with a validation of its own, for which peers may wait.
        self._trainer.heartbeat.beat(Phase.USER)


class Announcer:
    """Announces final partial sums to the reactor: each block during the last backward pass."""

    def __init__(self, trainer: Trainer, assignment: int) -> None:
        self._results, self._slots = trainer.results, trainer.gradients.slots
        self._assignment = assignment
        self._slots.begin_assignment(assignment)

    def __call__(self, blocks: tuple[int, ...]) -> None:
        self.announce(self._slots.list_unannounced_parts(), blocks)

    def announce(self, parts: tuple[PartialSum, ...], blocks: tuple[int, ...]) -> None:
        self._results.post(events.PartialSumsFinal(self._assignment, blocks, parts))
