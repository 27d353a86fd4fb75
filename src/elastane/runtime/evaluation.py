"""A pass over a dataset, spread over the workers, with exact sums."""

from collections.abc import Iterator
from typing import Any

import torch

from elastane.api.errors import BadInput
from elastane.api.heartbeat_file import Phase
from elastane.api.records import EventLine
from elastane.protocol.commit import sum_exactly
from elastane.protocol.messages import Leaf
from elastane.runtime.data.batch_sources import Collate, MapDataset, load_in_order
from elastane.runtime.data.dataset_checks import check_collate, check_count, check_positions
from elastane.runtime.trainer import Trainer
from elastane.runtime.values import check_value_names, compute_sum, describe_value
from elastane.runtime.worker_round import WorkerRound


class Evaluation:
    """Iterate it and `add` what is to be summed; its sums are exact and the same on every worker.

    Args:
        training: of the run.
        dataset: map-style.
        microbatch: samples of each batch.
        collate: list of samples to a batch; None: PyTorch's default.

    Attributes:
        sums: of everything added, by name; complete after the iteration.

    Raises:
        BadInput: the dataset cannot be read by position, or the microbatch is not a number of samples.
    """

    def __init__(
        self, training: Trainer, dataset: MapDataset, microbatch: int, collate: Collate | None
    ) -> None:
        check_positions(dataset, "run.evaluate")
        check_count("run.evaluate", "microbatch", microbatch)
        check_collate("run.evaluate", collate)
        self._training, self._dataset = training, dataset
        self._microbatch, self._collate = microbatch, collate
        self._added: dict[str, list[float]] | None = None
        self.sums: dict[str, float] = {}

    def __iter__(self) -> Iterator[Any]:
        training = self._training
        with training.iterated("an evaluation"):
            round_ = self._enter()
            yield from self._microbatches(round_)
            training.committed(round_.outcome)
        training.end_evaluation()
        self.sums = dict(round_.outcome.sums)
        training.evaluated(self.sums)
        line = EventLine(
            time=0.0,
            kind="evaluation",
            step=training.step,
            detail=dict(self.sums),
            samples=round_.outcome.samples,
        )
        training.reporter.happened(f"evaluation-{round_.outcome.round}", line)
        training.heartbeat.beat(Phase.USER)

    def _enter(self) -> WorkerRound:
        training, policy = self._training, self._training.spec.checkpoints
        training.before_step()
        size = -(-len(self._dataset) // self._microbatch)
        due = policy is not None and policy.each_evaluation
        return training.round("evaluate", size, checkpoint=due)

    def _microbatches(self, round_: WorkerRound) -> Iterator[Any]:
        training, length = self._training, len(self._dataset)
        for rank in round_:
            positions = range(rank * self._microbatch, min((rank + 1) * self._microbatch, length))
            training.heartbeat.beat(Phase.DATA)
            batch = load_in_order(self._dataset, positions, self._collate)
            training.heartbeat.beat(Phase.COMPUTE)
            self._added = {}
            training.seed_evaluation(rank)
            versions = training.state.versions()
            yield batch.inputs
            training.state.check_versions(versions)
            # Each worker computes others: what they do to buffers must not last.
            training.state.restore_buffers()
            added = {name: sum_exactly(values) for name, values in self._added.items()}
            leaf = Leaf(rank, training.worker, samples=batch.samples, checksum=batch.checksum, sums=added)
            round_.done(leaf)
        self._added = None

    def add(self, **values: float | torch.Tensor) -> None:
        """Add to the named sums, in fp64; tensors are summed first.

        Raises:
            BadInput: a value is not a number, or the evaluation is not being iterated.
        """
        if self._added is None:
            raise BadInput(
                "add was called outside of the loop over its evaluation",
                means="what is added there would be lost: each worker adds what its own microbatches give",
                do="call it in the loop: for batch in score: score.add(...)",
            )
        check_value_names(values, "Evaluation.add")
        for name, value in values.items():
            number = compute_sum(value)
            if number is None:
                raise BadInput(
                    f"Evaluation.add({name}=...) was given {describe_value(value)}",
                    means="only numbers and tensors are added up",
                    do=f"pass a number or a tensor, such as {name}=(outputs == targets).sum()",
                )
            self._added.setdefault(name, []).append(number)
