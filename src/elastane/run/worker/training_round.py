"""One round: its virtual ranks make inner steps from the committed parameters; it adds up what changed.

To the protocol a round is a step like any other, and the difference of a virtual rank is its gradient. So
what holds for a step holds for a round: joins, leaves, deaths, checkpoints, the ledger.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn

import msgspec
import torch

from elastane.common.errors import BadInput
from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.nouns.spec import Probe
from elastane.run.protocol.messages import Leaf
from elastane.run.protocol.sampling import MASK
from elastane.run.worker.cuda_graphs import check_not_capturing
from elastane.run.worker.data.batch_sources import Batch, BatchPlan, BatchSource
from elastane.run.worker.late_losses import LateLoss
from elastane.run.worker.losses import (
    build_no_microbatch_error,
    build_unused_microbatch_error,
    check_loss,
    check_weight,
)
from elastane.run.worker.spot_checks import SpotCheckPass
from elastane.run.worker.state.delayed_differences import Difference, RankBeginning
from elastane.run.worker.state.devices import LateNumber
from elastane.run.worker.state.inner_optimizer import avoid_zero
from elastane.run.worker.step import Announcer, TrainingStep
from elastane.run.worker.step_rehearsal import StepRehearsal
from elastane.run.worker.trainer import Trainer
from elastane.run.worker.worker_round import WorkerRound


class InnerStep:
    """One step of the inner optimizer; iterate over it for its microbatches.

    Args:
        microbatches: yields them.
        run_backward: takes the loss of a microbatch and its weight.

    Attributes:
        number: the number of the step in its round, from 1.
        virtual_rank: the virtual rank that makes it.
        rehearses: it is computed for the rehearsal, which leaves no trace.
    """

    def __init__(
        self,
        microbatches: Iterator[Any],
        run_backward: Callable[[torch.Tensor, float | torch.Tensor | None], None],
        *,
        number: int,
        virtual_rank: int,
        rehearses: bool = False,
    ) -> None:
        self._microbatches, self._run_backward = microbatches, run_backward
        self.number, self.virtual_rank, self.rehearses = number, virtual_rank, rehearses

    def __iter__(self) -> Iterator[Any]:
        return self._microbatches

    def backward(self, loss: torch.Tensor, *, weight: float | torch.Tensor | None = None) -> None:
        """Run the backward pass of a microbatch. After the last one the run steps the optimizer.

        Args:
            loss: scalar; the mean over the microbatch's samples, or, with ``weight``, the sum.
            weight: the weight of this microbatch, such as its number of tokens. The inner step divides its
                gradient by the sum of all weights.

        Raises:
            BadInput: the loss or the weight is invalid, or the microbatch has had its backward pass.
        """
        self._run_backward(check_loss(loss), weight)


class TrainingRound(TrainingStep):
    """One round; iterate over it for the inner steps of the virtual ranks that this worker computes.

    A virtual rank makes all its inner steps one after the other, on one worker. If that worker dies, another
    one makes all of them again. The attributes are those of a step: ``number`` counts rounds, and ``loss`` is
    not a number in a run with privacy.
    """

    def __init__(self, trainer: Trainer, plan: BatchPlan, source: BatchSource) -> None:
        super().__init__(trainer, plan, source)
        assert trainer.state.inner is not None, "checked by the run"
        self._inner = trainer.state.inner
        self._losses = WeighedLosses()
        # The samples of the current inner step.
        self._step_samples = 0

    def _build_rehearsed(self, inputs: Any) -> InnerStep:
        microbatches = iter((inputs,))
        return InnerStep(
            microbatches, self._run_inner, number=1, virtual_rank=self.virtual_rank, rehearses=True
        )

    def _iterate_microbatches(self) -> Iterator[Any]:
        if self._inner.delayed:
            self._trainer.state.replicated.check_unchanged_since_round()
        yield from super()._iterate_microbatches()

    def _compute_rank(self, round_: WorkerRound, rank: int) -> Iterator[Any]:
        trainer, inner = self._trainer, self._inner
        began_s = time.perf_counter() - round_.seconds["deal"]
        check = SpotCheckPass(trainer.state, trainer.gradients) if round_.recomputes else None
        before = None
        if trainer.state.replicated.beginning is not None:
            before = None if check is not None else inner.find_held(rank, self._number - 1)
            before = before or (yield from self._make_again(round_, rank, trainer.state.replicated.beginning))
        announcer = Announcer(trainer, round_.assignment)
        is_early = inner.delayed and self._number < self._plan.steps
        if is_early:
            self._begin_leaf(round_, rank, check, announcer)
            trainer.gradients.take_differences(() if before is None else before.divide(trainer.state.layout))
        leaf = yield from self._train_rank(round_, rank, self._number)
        share = leaf.samples / self._count_samples()
        if is_early and check is None:
            inner.hold(rank, self._number, inner.make_difference(share))
        if not is_early:
            self._begin_leaf(round_, rank, check, announcer)
            differences = inner.compute_differences(share)
            if before is not None:
                differences = inner.add_rounded(before, inner.make_difference(share)).divide(
                    trainer.state.layout
                )
            trainer.gradients.take_differences(differences)
        self._end_rank()
        changes = trainer.state.buffers.take_changes() if leaf.samples else trainer.state.buffers.make_zeros()
        inner.round_moments(changes)
        end = trainer.gradients.end_leaf if check is None else check.end
        untouched, fingerprints = end(changes)
        if check is None and round_.waiting:
            trainer.gradients.slots.announce_early((rank, *round_.waiting), announcer.announce)
        round_.seconds["compute"] += time.perf_counter() - round_.seconds["deal"] - began_s
        leaf = msgspec.structs.replace(leaf, untouched=untouched, fingerprints=fingerprints)
        round_.finish_leaf(*self._put_loss(leaf))

    def _begin_leaf(
        self, round_: WorkerRound, rank: int, check: SpotCheckPass | None, announcer: Announcer
    ) -> None:
        if check is None:
            announce = announcer if round_.is_last else None
            self._trainer.gradients.begin_leaf(rank, announce, checked=rank == round_.checked)

    def _make_again(
        self, round_: WorkerRound, rank: int, beginning: RankBeginning
    ) -> Generator[Any, None, Difference]:
        """Let the script make the inner steps of the round before again: another worker has made them."""
        number = self._number - 1
        leaf = yield from self._train_rank(round_, rank, number, beginning)
        difference = self._inner.make_difference(leaf.samples / self._count_samples(number))
        self._end_rank()
        return difference

    def _end_rank(self) -> None:
        self._inner.end_rank()
        self._trainer.state.replicated.remember_hyperparameters()

    def _train_rank(
        self, round_: WorkerRound, rank: int, number: int, beginning: RankBeginning | None = None
    ) -> Generator[Any, None, Leaf]:
        """Let the script make the inner steps of a virtual rank; return its leaf, without differences.

        Args:
            number: of the round to which the inner steps belong.
            beginning: what the virtual rank begins with; None: the committed state.
        """
        self._inner.begin_rank((rank, number), None if beginning is None else beginning.sections)
        if beginning is not None:
            self._trainer.state.replicated.show_hyperparameters(beginning.plain)
        self._losses = WeighedLosses()
        leaf, samples = Leaf(rank, self._trainer.worker), self._count_samples(number)
        for step in range(1, self._plan.inner_steps + 1):
            parts = self._plan.list_parts(rank, step)
            parts = [part for part in parts if self._plan.count_part_samples((part,), samples)]
            if not parts:
                break
            leaves = list[Leaf]()
            microbatches = self._iterate_parts(round_, number, leaf, parts, leaves)
            self._step_samples = self._plan.count_part_samples(parts, samples)
            yield InnerStep(microbatches, self._run_inner, number=step, virtual_rank=rank)
            if len(leaves) < len(parts):
                raise build_unused_microbatch_error(f"round {number}, inner step {step}: ")
            self._make_inner_step()
            for computed in leaves:
                leaf = _add_leaf(leaf, computed)
        return leaf

    def _iterate_parts(
        self, round_: WorkerRound, number: int, leaf: Leaf, parts: list[int], leaves: list[Leaf]
    ) -> Iterator[Any]:
        """Yield the microbatches of an inner step to the script.

        Args:
            number: of their round.
            leaf: of the virtual rank.
            parts: their numbers in the round.
            leaves: receives the leaf of each that has had its backward pass.
        """
        state, rank = self._trainer.state, leaf.virtual_rank
        for part in parts:
            if number == self._number:
                coming = () if round_.recomputes else self._list_coming(round_, part)
                batch = self._load_batch(round_, part, coming)
            else:
                batch = self._load_earlier(round_, number, part)
            versions = state.read_versions()
            self._pending_leaf = Leaf(rank, leaf.worker, samples=batch.samples, checksum=batch.checksum)
            self._logged = {}
            self._present = rank, batch.inputs
            state.replicated.caches.put_back()
            state.guard.position = ("round", number, part, time.perf_counter())
            yield batch.inputs
            leaves.append(self._take_computed())
            state.check_versions(versions)
            state.replicated.restore_flags()

    def _load_earlier(self, _round: WorkerRound, number: int, part: int) -> Batch:
        """Load a microbatch of the round before once more."""
        batch = self._source.load(number, part)
        self._trainer.heartbeat.beat(Phase.COMPUTE)
        return batch

    def _list_coming(self, round_: WorkerRound, part: int) -> tuple[int, ...]:
        """Return the microbatches that this worker will load in this round, from this one on."""
        plan = self._plan
        own = [other for other in plan.list_parts(plan.find_rank(part)) if other >= part]
        return (*own, *(other for waiting in round_.waiting for other in plan.list_parts(waiting)))

    def _make_inner_step(self) -> None:
        """Step the inner optimizer, with the gradients of all microbatches of the inner step."""
        state = self._trainer.state
        with state.guard.allow_steps():
            self._inner.step()
        state.replicated.remember_hyperparameters()

    def _run_inner(self, loss: torch.Tensor, weight: float | torch.Tensor | None) -> None:
        check_not_capturing(loss)
        checked = None if weight is None else check_weight(weight)
        if self._rehearsal is not None:
            self._rehearsal.backward(loss)
            return
        leaf, self._pending_leaf = self._pending_leaf, None
        if leaf is None:
            raise build_no_microbatch_error()
        given = weight if isinstance(checked, LateNumber) else checked
        self._losses.add(loss, leaf.samples, given)
        self._inner.backward(loss, leaf.samples / self._step_samples, given)
        self._computed_leaf = leaf

    def _take_computed(self) -> Leaf:
        leaf = super()._take_computed()
        if leaf.sums and self._inner.noise is not None:
            raise BadInput(
                f"the script recorded {next(iter(leaf.sums))} of a microbatch in a run with privacy",
                means="the value would leave the site without noise",
                do="call run.log between two rounds, with values of data that every site may read",
            )
        return leaf

    def _build_probe(self, rehearsal: StepRehearsal) -> Probe | None:
        probe = super()._build_probe(rehearsal)
        if probe is None or self._inner.noise is None:
            return probe
        rank = self._plan.find_rank(self._present[0])
        return msgspec.structs.replace(probe, result=self._inner.noise.seal(probe.result, rank))

    def _put_loss(self, leaf: Leaf) -> tuple[Leaf, LateLoss | None]:
        """Return the leaf with its loss, or without it and the loss that a device still computes."""
        mean = self._losses.compute_mean()
        if mean is None:
            return leaf, None
        late_loss = LateLoss(LateNumber(mean), self._number, None, by_samples=False, term_of=None)
        if self._inner.noise is not None:
            # The loss stays at its site, after the check that it is finite.
            late_loss.put_into(leaf)
            return leaf, None
        return (late_loss.put_into(leaf), None) if late_loss.has_arrived else (leaf, late_loss)

    def _count_samples(self, number: int | None = None) -> int:
        samples = self._source.count_samples(self._number if number is None else number)
        assert samples is not None, "a round has no stream"
        return samples

    def _count_schedule_steps(self) -> int:
        """Return the inner steps of the longest virtual rank: those of a loop over global batches."""
        return -(-self._count_samples() // self._plan.step_samples)

    def _apply(self) -> None:
        assert self._round is not None, "the microbatches are computed in a round"
        self._inner.drains = self._round.outcome.step >= self._plan.steps
        super()._apply()
        if self._inner.noise is not None:
            self.loss = math.nan

    def backward(
        self, loss: torch.Tensor, *, weight: float | torch.Tensor | None = None, summed: bool = False
    ) -> NoReturn:
        """Refuse: a backward pass belongs to an inner step."""
        raise _build_round_error("backward", "step.backward(loss)")

    def count(self, measure: Callable[[Any], float | torch.Tensor]) -> NoReturn:
        """Refuse: each virtual rank knows its own microbatches only."""
        raise _build_round_error("count", "step.backward(loss_sum, weight=number)")


class WeighedLosses:
    """The losses of a virtual rank, of which its leaf has the mean; perhaps on a device."""

    def __init__(self) -> None:
        self._total: torch.Tensor | None = None
        self._weight: float | torch.Tensor = 0.0

    def add(self, loss: torch.Tensor, samples: int, weight: float | torch.Tensor | None) -> None:
        """Add the loss of a microbatch: the mean over samples, or, with a weight, the sum."""
        term = loss.detach().double()
        if weight is None:
            term, weight = term * samples, float(samples)
        self._total = term if self._total is None else self._total + term
        self._weight = self._weight + (
            weight.detach().double() if isinstance(weight, torch.Tensor) else weight
        )

    def compute_mean(self) -> torch.Tensor | None:
        """Return the mean over the weights; None: the virtual rank has no samples."""
        return None if self._total is None else self._total / avoid_zero(self._weight)


def _add_leaf(leaf: Leaf, computed: Leaf) -> Leaf:
    """Return the leaf of a virtual rank with that of one of its microbatches."""
    sums = {name: leaf.sums.get(name, 0.0) + term for name, term in computed.sums.items()}
    return msgspec.structs.replace(
        leaf,
        samples=leaf.samples + computed.samples,
        checksum=(leaf.checksum + computed.checksum) & MASK,
        sums={**leaf.sums, **sums},
    )


def _build_round_error(method: str, do: str) -> BadInput:
    return BadInput(
        f"the script called {method} of a round",
        means="a round consists of inner steps, and each of them has microbatches with losses",
        do=f"loop over the inner steps of the round, and over the microbatches of each; there use {do}",
    )
