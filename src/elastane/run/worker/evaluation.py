"""An evaluation: one pass over a dataset, shared by the workers, with exact sums."""

from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

import torch

from elastane.common.errors import BadInput
from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.nouns.records import EventLine
from elastane.run.protocol.commit import sum_exactly
from elastane.run.protocol.messages import Leaf
from elastane.run.worker.data.batch_sources import Batch, Collate, MapDataset, load_in_order
from elastane.run.worker.data.dataset_checks import check_collate, check_count, check_positions
from elastane.run.worker.gathered_tensors import GatheredTensors, drop_places
from elastane.run.worker.gathered_values import GatheredValues, drop_gathered
from elastane.run.worker.trainer import Trainer
from elastane.run.worker.values import check_value_names, compute_sum, describe_value
from elastane.run.worker.worker_round import WorkerRound


class Evaluation:
    """One pass over a dataset; iterate over it and `add` values to its sums.

    The sums are exact and the same on every worker.

    Args:
        trainer: the trainer of the run.
        dataset: a map-style dataset.
        microbatch: the number of samples in each batch.
        collate: builds a batch from a list of samples; None: PyTorch's default.

    Attributes:
        sums: the sums of all added values, by name; complete after the iteration.
        gathered: the numbers of each microbatch; complete after the iteration.
        outputs: the tensors of each microbatch, such as predictions; complete after the iteration.

    Raises:
        BadInput: the dataset has no samples by position, or the size of the microbatch is invalid.
    """

    def __init__(
        self, trainer: Trainer, dataset: MapDataset, microbatch: int, collate: Collate | None
    ) -> None:
        check_positions(dataset, "run.evaluate")
        check_count("run.evaluate", "microbatch", microbatch)
        check_collate("run.evaluate", collate)
        self._trainer, self._dataset = trainer, dataset
        self._microbatch, self._collate = microbatch, collate
        self._values: dict[str, list[float]] | None = None
        self.sums: dict[str, float] = {}
        self.gathered = GatheredValues()
        self.outputs = GatheredTensors(trainer.worker, trainer.round_folders, trainer.spec.processes)

    def __iter__(self) -> Iterator[Any]:
        trainer = self._trainer
        with trainer.iterate_exclusively("an evaluation"):
            round_ = self._enter()
            yield from self._iterate_microbatches(round_)
            outcome = round_.outcome
            trainer.take_outcome(outcome, trainer.step)
            beat = partial(trainer.heartbeat.beat, Phase.DATA)
            for rank in self.outputs.collect(outcome.round, outcome.sums, beat):
                yield from self._compute(rank)
                # The sums have the numbers of this microbatch already.
                self.gathered.take(rank)
                self.outputs.keep(rank)
        self._values = None
        # What a forward pass of the evaluation left in modules does not come from the script.
        trainer.state.replicated.caches.end_step()
        trainer.state.replicated.remember_values()
        trainer.seeds.end_evaluation(trainer.step)
        self.gathered.complete(outcome.sums)
        self.outputs.complete()
        self.sums = drop_places(drop_gathered(outcome.sums))
        trainer.set_evaluation(self.sums)
        line = EventLine(
            time=0.0,
            kind="evaluation",
            step=trainer.step,
            detail=dict(self.sums),
            samples=outcome.samples,
        )
        trainer.reporter.report_event(f"evaluation-{outcome.round}", line)
        trainer.heartbeat.beat(Phase.USER)

    def _enter(self) -> WorkerRound:
        trainer = self._trainer
        trainer.take_script_changes()
        # All processes of a worker compute together, so the last of them may repeat a batch.
        together = trainer.place.size
        size = -(-self._count_batches() // together) * together
        return trainer.create_round("evaluate", size, checkpoint=trainer.schedule.each_evaluation)

    def _count_batches(self) -> int:
        return -(-len(self._dataset) // self._microbatch)

    def _iterate_microbatches(self, round_: WorkerRound) -> Iterator[Any]:
        for rank in round_:
            assert round_.begin is not None, "a round begins before it is computed"
            if rank >= self._count_batches():
                yield from self._compute(self._count_batches() - 1)
                self.gathered.take(rank)
                round_.finish_leaf(Leaf(rank, self._trainer.worker))
                continue
            batch = yield from self._compute(rank)
            sums = {name: sum_exactly(values) for name, values in (self._values or {}).items()}
            sums |= self.gathered.take(rank) | self.outputs.take(round_.begin.round, rank)
            checksum, samples = batch.checksum, batch.samples
            round_.finish_leaf(
                Leaf(rank, self._trainer.worker, samples=samples, checksum=checksum, sums=sums)
            )

    def _compute(self, rank: int) -> Generator[Any, None, Batch]:
        """Let the script compute a microbatch; return it."""
        trainer = self._trainer
        positions = range(rank * self._microbatch, min((rank + 1) * self._microbatch, len(self._dataset)))
        trainer.heartbeat.beat(Phase.DATA)
        batch = load_in_order(self._dataset, positions, self._collate)
        trainer.heartbeat.beat(Phase.COMPUTE)
        self._values = {}
        self.gathered.begin()
        self.outputs.begin()
        trainer.state.replicated.caches.put_back()
        trainer.seeds.seed_evaluation(trainer.step, rank)
        versions = trainer.state.read_versions()
        yield batch.inputs
        trainer.state.check_versions(versions)
        # Workers compute different batches, so the changes that these make to buffers must not last.
        trainer.state.buffers.restore()
        return batch

    def add(self, **values: float | torch.Tensor) -> None:
        """Add values to the sums of their names, in fp64; a tensor adds the sum of its elements.

        Raises:
            BadInput: a value is not a number, or the call is outside the loop over the evaluation.
        """
        if self._values is None:
            raise BadInput(
                "Evaluation.add was called outside the loop over the evaluation",
                means="the value would be lost: each worker adds the values of its own microbatches",
                do="call it in the loop: for batch in score: score.add(...)",
            )
        check_value_names(values, "Evaluation.add")
        for name, value in values.items():
            number = compute_sum(value)
            if number is None:
                raise BadInput(
                    f"Evaluation.add({name}=...) was given {describe_value(value)}",
                    means="an evaluation adds up numbers and tensors only",
                    do=f"pass a number or a tensor, such as {name}=(outputs == targets).sum()",
                )
            self._values.setdefault(name, []).append(number)
