"""A round with bound data: it leaves out the virtual ranks of absent sites, which change nothing."""

import time
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.protocol.messages import Leaf
from elastane.run.worker.data.batch_sources import Batch, BatchPlan
from elastane.run.worker.data.bound_data import BoundBatchSource
from elastane.run.worker.late_losses import LateLoss
from elastane.run.worker.step import Announcer
from elastane.run.worker.trainer import Trainer
from elastane.run.worker.training_round import TrainingRound
from elastane.run.worker.worker_round import WorkerRound

LOOK_S = 0.1


class BoundRound(TrainingRound):
    """One round over data that is bound to sites."""

    def __init__(self, trainer: Trainer, plan: BatchPlan, source: BoundBatchSource) -> None:
        super().__init__(trainer, plan, source)
        self._bound = source

    def _compute_rank(self, round_: WorkerRound, rank: int) -> Iterator[Any]:
        if rank in round_.left_out:
            self._leave_out(round_, rank)
        else:
            yield from super()._compute_rank(round_, rank)

    def _leave_out(self, round_: WorkerRound, rank: int) -> None:
        """Add nothing to the sums for a virtual rank, in place of its differences."""
        trainer, announcer = self._trainer, Announcer(self._trainer, round_.assignment)
        trainer.gradients.begin_leaf(rank, announcer if round_.is_last else None)
        trainer.gradients.take_differences({})
        trainer.gradients.end_leaf(trainer.state.buffers.make_zeros())
        if round_.waiting:
            trainer.gradients.slots.announce_early((rank, *round_.waiting), announcer.announce)
        round_.finish_leaf(Leaf(rank, trainer.worker))
        # It takes no time, and says nothing about the speed of this worker.
        round_.computed -= 1

    def _load_earlier(self, round_: WorkerRound, number: int, part: int) -> Batch:
        assert round_.begin is not None, "a round begins before it is computed"
        # This worker may have loaded nothing in this round yet, or nothing at all.
        self._bound.expect(round_.begin, ())
        return super()._load_earlier(round_, number, part)

    def _put_loss(self, leaf: Leaf) -> tuple[Leaf, LateLoss | None]:
        return super()._put_loss(
            msgspec.structs.replace(leaf, cursor=self._bound.find_cursor(leaf.virtual_rank))
        )

    def _load_first_batch(self, *, after: int = -1) -> Any:
        firsts = [part for rank in self._bound.own_ranks for part in self._plan.list_parts(rank, 1)[:1]]
        if not firsts:
            self._wait_for_dismissal()
        part = next((part for part in firsts if part > after), None)
        if part is None:
            return None
        batch = self._source.load(self._plan.began_at.step + 1, part)
        self._present = part, batch.inputs
        return batch.inputs

    def _wait_for_dismissal(self) -> NoReturn:
        """Wait until the coordinator dismisses this worker, which has no data of the run."""
        while True:
            self._trainer.heartbeat.beat(Phase.STARTING)
            time.sleep(LOOK_S)
