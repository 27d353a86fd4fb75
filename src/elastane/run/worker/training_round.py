"""One round: its virtual ranks make inner steps from the committed parameters; it adds up what changed.

To the protocol a round is a step like any other, and the difference of a virtual rank is its gradient. So
what holds for a step holds for a round: joins, leaves, deaths, checkpoints, the ledger.
"""

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn

import msgspec
import torch

from elastane.common.errors import BadInput
from elastane.run.protocol.messages import Leaf
from elastane.run.protocol.sampling import MASK
from elastane.run.worker.cuda_graphs import check_not_capturing
from elastane.run.worker.data.batch_sources import Batch, BatchPlan, BatchSource
from elastane.run.worker.late_losses import LateLoss
from elastane.run.worker.losses import build_no_microbatch_error, check_loss
from elastane.run.worker.spot_checks import SpotCheckPass
from elastane.run.worker.state.devices import LateNumber
from elastane.run.worker.step import Announcer, TrainingStep
from elastane.run.worker.trainer import Trainer
from elastane.run.worker.worker_round import WorkerRound


class InnerStep:
    """One step of the inner optimizer; iterate over it for its microbatch.

    Args:
        inputs: the microbatch.
        take_loss: takes the loss of the microbatch.

    Attributes:
        number: the number of the step in its round, from 1.
        virtual_rank: the virtual rank that makes it.
        rehearses: the microbatch is computed for the rehearsal, which leaves no trace.
    """

    def __init__(
        self,
        inputs: Any,
        take_loss: Callable[[torch.Tensor], None],
        *,
        number: int,
        virtual_rank: int,
        rehearses: bool = False,
    ) -> None:
        self._inputs, self._take_loss = inputs, take_loss
        self.number, self.virtual_rank, self.rehearses = number, virtual_rank, rehearses

    def __iter__(self) -> Iterator[Any]:
        yield self._inputs

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of the microbatch. The run steps the optimizer after it.

        Args:
            loss: scalar; the mean over the microbatch's samples.

        Raises:
            BadInput: the loss is invalid, or the microbatch has had its backward pass.
        """
        self._take_loss(check_loss(loss))


class TrainingRound(TrainingStep):
    """One round; iterate over it for the inner steps of the virtual ranks that this worker computes.

    A virtual rank makes all its inner steps one after the other, on one worker. If that worker dies, another
    one makes all of them again. The attributes are those of a step: ``number`` counts rounds.
    """

    def __init__(self, trainer: Trainer, plan: BatchPlan, source: BatchSource) -> None:
        super().__init__(trainer, plan, source)
        assert trainer.state.inner is not None, "checked by the run"
        self._inner = trainer.state.inner
        # The sum of the losses of a virtual rank so far, each times its samples; perhaps on a device.
        self._losses: torch.Tensor | None = None

    def _rehearse(self) -> Iterator[Any]:
        for inputs in super()._rehearse():
            yield InnerStep(inputs, self._take_loss, number=1, virtual_rank=self.virtual_rank, rehearses=True)

    def _compute_rank(self, round_: WorkerRound, rank: int) -> Iterator[Any]:
        trainer, inner = self._trainer, self._inner
        began_s = time.perf_counter() - round_.seconds["deal"]
        check = SpotCheckPass(trainer.state, trainer.gradients) if round_.recomputes else None
        inner.begin_rank()
        self._losses = None
        leaf = Leaf(rank, trainer.worker)
        for number, part in enumerate(self._plan.list_parts(rank), 1):
            batch = self._load_part(round_, rank, part)
            if not batch.samples:
                break
            leaf = yield from self._make_inner_step(leaf, batch, number)
        differences = inner.end_rank(leaf.samples / self._count_samples())
        trainer.state.replicated.remember_hyperparameters()
        changes = trainer.state.buffers.take_changes()
        announcer = Announcer(trainer, round_.assignment)
        if check is None:
            announce = announcer if round_.is_last else None
            trainer.gradients.begin_leaf(rank, announce, checked=rank == round_.checked)
        trainer.gradients.take_differences(differences)
        end = trainer.gradients.end_leaf if check is None else check.end
        untouched, fingerprints = end(changes)
        if check is None and round_.waiting:
            trainer.gradients.slots.announce_early((rank, *round_.waiting), announcer.announce)
        round_.seconds["compute"] += time.perf_counter() - round_.seconds["deal"] - began_s
        leaf = msgspec.structs.replace(leaf, untouched=untouched, fingerprints=fingerprints)
        round_.finish_leaf(*self._put_loss(leaf))

    def _load_part(self, round_: WorkerRound, rank: int, part: int) -> Batch:
        """Load the microbatch of an inner step, and seed its random numbers."""
        own = [other for other in self._plan.list_parts(rank) if other >= part]
        later = [other for waiting in round_.waiting for other in self._plan.list_parts(waiting)]
        return self._load_batch(round_, part, () if round_.recomputes else (*own, *later))

    def _make_inner_step(self, leaf: Leaf, batch: Batch, number: int) -> Generator[Any, None, Leaf]:
        """Let the script compute a microbatch, and step the inner optimizer; return the leaf with both."""
        state, rank = self._trainer.state, leaf.virtual_rank
        versions = state.read_versions()
        self._pending_leaf, self._logged = Leaf(rank, leaf.worker, samples=batch.samples), {}
        self._present = rank, batch.inputs
        state.replicated.caches.put_back()
        state.guard.position = ("round", self._number, rank, number, time.perf_counter())
        yield InnerStep(batch.inputs, self._take_loss, number=number, virtual_rank=rank)
        computed = self._take_computed()
        state.check_versions(versions)
        state.replicated.restore_flags()
        with state.guard.allow_steps():
            self._inner.step()
        state.replicated.remember_hyperparameters()
        sums = {name: leaf.sums.get(name, 0.0) + term for name, term in computed.sums.items()}
        return msgspec.structs.replace(
            leaf,
            samples=leaf.samples + batch.samples,
            checksum=(leaf.checksum + batch.checksum) & MASK,
            sums={**leaf.sums, **sums},
        )

    def _take_loss(self, loss: torch.Tensor) -> None:
        check_not_capturing(loss)
        if self._rehearsal is not None:
            self._rehearsal.backward(loss)
            return
        leaf, self._pending_leaf = self._pending_leaf, None
        if leaf is None:
            raise build_no_microbatch_error()
        term = loss.detach().double() * leaf.samples
        self._losses = term if self._losses is None else self._losses + term
        self._inner.backward(loss)
        self._computed_leaf = leaf

    def _put_loss(self, leaf: Leaf) -> tuple[Leaf, LateLoss | None]:
        """Return the leaf with its loss, or without it and the loss that a device still computes."""
        if self._losses is None:
            return leaf, None
        number = LateNumber(self._losses / leaf.samples)
        late_loss = LateLoss(number, self._number, None, by_samples=False, term_of=None)
        return (late_loss.put_into(leaf), None) if late_loss.has_arrived else (leaf, late_loss)

    def _count_samples(self) -> int:
        samples = self._source.count_samples(self._number)
        assert samples is not None, "a round has no stream"
        return samples

    def _count_schedule_steps(self) -> int:
        """Return the inner steps of the longest virtual rank: those of a loop over global batches."""
        plan = self._plan
        return -(-self._count_samples() // (plan.microbatch * plan.virtual_ranks))

    def backward(
        self, loss: torch.Tensor, *, weight: float | torch.Tensor | None = None, summed: bool = False
    ) -> NoReturn:
        """Refuse: a backward pass belongs to an inner step."""
        raise _build_round_error("backward", "step.backward(loss)")

    def count(self, measure: Callable[[Any], float | torch.Tensor]) -> NoReturn:
        """Refuse: an inner step has one microbatch of its virtual rank."""
        raise _build_round_error("count", "the loss of a microbatch as the mean of its samples or tokens")


def _build_round_error(method: str, do: str) -> BadInput:
    return BadInput(
        f"the script called {method} of a round",
        means="a round consists of inner steps, and each of them has a microbatch and a loss",
        do=f"loop over the inner steps of the round, and over the microbatch of each; there use {do}",
    )
