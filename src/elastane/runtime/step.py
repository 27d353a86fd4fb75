"""One training step, as the script's inner loop sees it."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from elastane.api.errors import BadInput, RunFailed
from elastane.api.heartbeat_file import Phase
from elastane.protocol import events
from elastane.protocol.messages import Leaf
from elastane.runtime.arguments import check_scalers, list_used_scalers
from elastane.runtime.data.batch_sources import BatchPlan, BatchSource
from elastane.runtime.losses import (
    build_no_microbatch_error,
    build_unused_microbatch_error,
    check_loss,
    check_weight,
    explain_second_pass,
)
from elastane.runtime.state.run_keep import do_nothing
from elastane.runtime.step_record import check_unused_names, compute_means, weigh_values
from elastane.runtime.step_rehearsal import StepRehearsal
from elastane.runtime.trainer import Trainer
from elastane.runtime.worker_exit import exit_for_replacement
from elastane.runtime.worker_round import WorkerRound


class TrainingStep:
    """One training step; iterate it for the microbatches of my virtual ranks.

    A worker's first iteration begins with a rehearsal: a microbatch whose gradients are thrown away, to have
    everything loaded and warm before the others wait for it. Where a run begins the microbatch is computed
    twice, to find out whether the script's loop gives the same for it each time.

    Attributes:
        loss: of the whole step, the same on every worker; known after the iteration.
        stopped: the run stops after this step.
        cut_short: it does so because the user asked for it, and not for having come to its end.
        skipped: its scaled gradient overflowed, so that the parameters were left as they are.
        last: the loop over the steps ends after it, for having been stopped or having come to its end.
        ended_epoch: every sample of the epoch has been seen with it.
    """

    def __init__(self, training: Trainer, plan: BatchPlan, source: BatchSource) -> None:
        self._training = training
        self._plan = plan
        self._source = source
        self._number = training.step + 1
        self._rehearsal: StepRehearsal | None = None
        self._awaited: Leaf | None = None
        self._computed: Leaf | None = None
        self._begun = self._ended = False
        self._number_read = False
        self._round: WorkerRound | None = None
        self._put_back: Callable[[], None] = do_nothing
        self._logged: dict[str, float] = {}
        if not training.rehearsed and not training.initial:
            training.keep.before_read = self._learn_number
        self.loss = math.nan
        self.stopped = self.cut_short = self.skipped = self.last = self.ended_epoch = False

    @property
    def number(self) -> int:
        """From 1."""
        self._learn_number()
        return self._number

    @property
    def epoch(self) -> int:
        """From 0."""
        self._learn_number()
        return self._source.epoch(self._number)

    @property
    def begun(self) -> bool:
        """Its iteration has begun."""
        return self._begun

    @property
    def ended(self) -> bool:
        """It has been made."""
        return self._ended

    @property
    def under_way(self) -> bool:
        """Begun, and not iterated to its end."""
        return self._begun and not self._ended

    def _learn_number(self) -> None:
        """Learn the number of the step before the inner loop, if the script reads it there.

        A worker that joins learns it with its first round. So it joins first, and computes its first
        microbatch without a rehearsal.
        """
        training = self._training
        if self._begun:
            return
        self._number_read = True
        training.keep.before_read = do_nothing
        if training.rehearsed or training.initial:
            return
        training.before_step()
        training.ready()
        self._round = round_ = self._enter(newcomer=True)
        round_.begin_now()
        self._number = round_.step
        # The other scripts have run the code ahead of their inner loops: the state has its changes.
        self._put_back = training.state.snapshot()
        training.seed_ahead(self._number)
        training.heartbeat.beat(Phase.USER)

    def _enter(self, *, newcomer: bool) -> WorkerRound:
        training = self._training
        round_ = training.round(
            "train", self._plan.virtual_ranks, checkpoint=training.keeps_after(training.step + 1)
        )
        round_.newcomer = newcomer
        return round_

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise BadInput(
                f"step {self._number} was iterated twice",
                means="a step computes each of its microbatches once",
                do="loop over the step once; compute several losses in the same iteration",
            )
        with self._training.iterated("a step"):
            yield from self._microbatches()
        self._apply()

    def _microbatches(self) -> Iterator[Any]:
        training = self._training
        training.keep.before_read = do_nothing
        newcomer = not training.rehearsed
        if self._round is None:
            training.before_step()
        else:
            self._put_back()
        if newcomer:
            self._begun = training.keep.locked = True
            yield from self._rehearse()
        self._begun = training.keep.locked = True
        round_ = self._round = self._round or self._enter(newcomer=newcomer)
        versions: list[int] | None = None
        for rank in round_:
            self._check_number(round_.step)
            assert round_.begin is not None, "computing follows the beginning"  # noqa: S101
            with round_.timed("deal"):
                training.heartbeat.beat(Phase.DATA)
                self._source.expect(round_.begin, (rank, *round_.waiting))
                batch = self._source.load(self._number, rank)
                training.heartbeat.beat(Phase.COMPUTE)
            # A worker that joins has its values only once the round begins.
            if versions is None:
                versions = training.state.versions()
            begun = time.perf_counter()
            announce = self._announce(round_) if round_.last else None
            training.gradients.begin_leaf(rank, announce, round_.following)
            leaf = Leaf(
                rank,
                training.worker,
                samples=batch.samples,
                checksum=batch.checksum,
                cursor=batch.cursor,
            )
            if not batch.samples:
                changes = training.state.no_changes()
            else:
                self._awaited = leaf
                self._logged = {}
                training.state.guard.position = ("step", self._number, rank, begun)
                yield batch.inputs
                leaf = self._after_backward()
                if self._logged:
                    leaf = msgspec.structs.replace(leaf, sums=weigh_values(self._logged, leaf.samples))
                training.state.check_versions(versions)
                training.state.rest.restore_flags()
                changes = training.state.buffer_changes()
            untouched = training.gradients.end_leaf(changes)
            round_.seconds["compute"] += time.perf_counter() - begun
            round_.done(msgspec.structs.replace(leaf, untouched=untouched))

    def _check_number(self, number: int) -> None:
        """Check the number that the script has read ahead of its inner loop against that of the round."""
        if self._number_read and number != self._number:
            # The run began without this worker, so its script has decided by a wrong number.
            exit_for_replacement(f"step {self._number} was awaited, but the run is at step {number}")
        self._number = number

    def backward(self, loss: torch.Tensor, *, weight: float | torch.Tensor | None = None) -> None:
        """The backward pass of the microbatch at hand.

        Args:
            loss: scalar; the mean over the microbatch's samples, or, with ``weight``, the sum.
            weight: what the sum is to be divided by over the whole step, such as a number of tokens.

        Raises:
            BadInput: the loss or the weight is not what a backward pass needs.
            RunFailed: the loss is not finite.
        """
        loss = check_loss(loss)
        given = None if weight is None else check_weight(weight)
        try:
            self._backward(loss, given)
        except RuntimeError as error:
            refusal = explain_second_pass(error)
            if refusal is not None:
                raise refusal from None
            raise

    def _backward(self, loss: torch.Tensor, weight: float | None) -> None:
        if self._rehearsal is not None:
            self._rehearsal.backward(loss)
            return
        leaf, self._awaited = self._awaited, None
        if leaf is None:
            raise build_no_microbatch_error()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise RunFailed(
                f"the loss of step {self._number}, virtual rank {leaf.virtual_rank} is {value}",
                means="the step was not committed; the state is that of the step before",
                do="look at the learning rate and at this microbatch; the step is reproducible by its number",
            )
        scaling = self._training.scaling
        count = self._source.count(self._number)
        if weight is None and count is None:
            # How many samples a step of a stream has is known when all have been loaded: divide by it then.
            loss, value, weight = loss * leaf.samples, value * leaf.samples, leaf.samples
        scaled = loss if scaling is None else scaling.scaled(loss)
        if weight is None:
            assert count is not None, "decided above"  # noqa: S101
            share = leaf.samples / count
            self._training.gradients.backward(scaled, torch.full_like(scaled, share))
            self._computed = msgspec.structs.replace(leaf, loss=value, weight=float(leaf.samples))
        else:
            self._training.gradients.backward(scaled)
            mean = value / weight if weight else 0.0
            self._computed = msgspec.structs.replace(leaf, loss=mean, weight=weight, weighted=True)

    def log(self, values: dict[str, float]) -> None:
        """Log values of the microbatch at hand; the step gets their mean over its samples.

        Raises:
            BadInput: there is no microbatch at hand, or it has such a value already.
        """
        if self._rehearsal is not None:
            self._rehearsal.log(values)
            return
        if self._awaited is None and self._computed is None:
            raise BadInput(
                "run.log was called in a step, but outside of the loop over its microbatches",
                means="each worker computes other microbatches",
                do="log in the loop over the step, or after it",
            )
        check_unused_names(self._logged, values)
        self._logged.update(values)

    def finish(self) -> None:
        """Called between steps: the iteration must have run to its end."""
        if not self._ended:
            raise BadInput(
                f"step {self._number} was not iterated to its end",
                means="its samples would be lost and the other workers would wait for ever",
                do="loop over the whole step, without break or return",
            )

    def _after_backward(self) -> Leaf:
        leaf, self._computed = self._computed, None
        if leaf is None:
            raise build_unused_microbatch_error(f"step {self._number}: ")
        return leaf

    def _rehearse(self) -> Iterator[Any]:
        training = self._training
        rehearsal = self._rehearsal = StepRehearsal(
            training.state, training.gradients, compared=training.compares
        )
        scalers = list_used_scalers() if training.initial else []
        for repeated in range(2 if training.compares else 1):
            # Loaded anew: a dataset too must give the same, and a script may change its batch in place.
            inputs = self._first_batch()
            training.state.guard.position = ("rehearsal", repeated)
            training.heartbeat.beat(Phase.STARTING)
            rehearsal.begin()
            yield inputs
            rehearsal.end()
            training.heartbeat.beat(Phase.STARTING, like=Phase.COMPUTE)
        self._rehearsal = None
        if training.initial:
            check_scalers(scalers)
        rehearsal.leave_no_trace()
        training.ready()

    def _first_batch(self) -> Any:  # noqa: ANN401 - whatever the dataset has
        """The first microbatch of the run that has samples.

        Raises:
            BadInput: there is none.
        """
        for rank in range(self._plan.virtual_ranks):
            batch = self._source.load(1, rank)
            if batch.samples:
                return batch.inputs
        raise BadInput("the stream is empty", means="there is nothing to train on", do="check its shards")

    def _announce(self, round_: WorkerRound) -> "_Announce":
        return _Announce(self._training, round_.assignment)

    def _apply(self) -> None:
        round_ = self._round
        assert round_ is not None, "its microbatches are computed"  # noqa: S101
        begin = round_.begin
        assert round_.commit is not None, "a round that has ended is committed"  # noqa: S101
        assert begin is not None, "and has begun before"  # noqa: S101
        outcome = round_.outcome
        self._number = outcome.step
        self._training.heartbeat.beat(Phase.COMPUTE)
        with round_.timed("apply"):
            taken = self._training.apply(round_.commit)
        round_.wait_for_release()
        self._training.after_step(outcome.step)
        self.loss, self.stopped, self.skipped = outcome.loss, outcome.stop, taken.skipped
        finished = self._source.finished(outcome)
        self.last, self.cut_short = finished or outcome.stop, outcome.stop and not finished
        self.ended_epoch = self._source.ended_epoch(outcome)
        self._ended = True
        self._training.keep.locked = False
        means = compute_means(outcome.sums)
        self._training.record.begin(means)
        due = outcome.step % self._training.spec.digest_every == 0 or self.last
        self._training.reporter.committed(
            round_,
            self._source.samples(outcome, begin.cursors),
            taken.norm,
            digest_due=due,
            skipped=taken.skipped,
            learning_rates=taken.learning_rates,
            logged=means,
        )


class _Announce:
    """Tells the reactor which blocks are final, as the last backward pass goes along."""

    def __init__(self, training: Trainer, assignment: int) -> None:
        self._reactor, self._gradients = training.reactor, training.gradients
        self._assignment = assignment

    def __call__(self, blocks: tuple[int, ...]) -> None:
        self._reactor.post(events.PartialSumsFinal(self._assignment, blocks, self._gradients.parts()))
