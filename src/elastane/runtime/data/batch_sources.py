"""Samples of virtual ranks: loaded by position, collated as PyTorch's own loader does."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from torch.utils.data import default_collate

from elastane.api.errors import BadInput
from elastane.api.records import Samples
from elastane.protocol.actions import BeginRound
from elastane.protocol.messages import RoundOutcome
from elastane.protocol.sampling import (
    StepSamples,
    count_steps_per_epoch,
    derive_loading_key,
    derive_random_key,
    find_sample_index,
    find_step_samples,
    hash_sample,
)
from elastane.runtime.data.dataset_checks import check_count, collate_samples
from elastane.runtime.data.determinism import seed_everything, use_one_thread
from elastane.runtime.data.loaders import Loaders, Request
from elastane.runtime.exhaustion import runs_script

Collate = Callable[[list[Any]], Any]
MASK = (1 << 64) - 1


def collate_default(samples: list[Any]) -> Any:  # noqa: ANN401 - a sample is the user's
    """Make a batch as PyTorch's own loader does.

    Raises:
        BadInput: it cannot be made.
    """
    return collate_samples(default_collate, samples)


class MapDataset(Protocol):
    """Any map-style dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...  # noqa: ANN401 - a sample is the user's


class Batch(msgspec.Struct, frozen=True):
    """The samples of one virtual rank, collated, with their ledger entry; none at the end of an epoch.

    ``cursor`` says where the virtual rank's stream stands after them.
    """

    inputs: Any
    samples: int
    checksum: int
    cursor: str | None = None


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a dataset is dealt to steps and virtual ranks; equal on every worker.

    Args:
        length: of the dataset, in samples; 0: a stream, whose length nobody knows.
        global_batch: samples per step.
        microbatch: samples per virtual rank.
        virtual_ranks: V.
        steps: how many there will be; 0: until a stream has ended ``epochs`` times.
        epochs: of a stream; 0: until ``steps`` are made.
        seed: of the run.
    """

    length: int
    global_batch: int
    microbatch: int
    virtual_ranks: int
    steps: int
    seed: int
    epochs: int = 0

    def samples(self, step: int) -> StepSamples:
        return find_step_samples(step, self.length, self.global_batch)


class BatchSource(ABC):
    """Deals the samples of virtual ranks, on any worker and in whatever order they are asked for."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def load(self, step: int, virtual_rank: int) -> Batch:
        """The batch of a virtual rank, with the random numbers of its computation seeded.

        Raises:
            Exception: whatever the dataset raises.
        """
        batch = self._load_batch(step, virtual_rank)
        # Anew: whoever loaded, and however many random numbers that took, the computation sees the same.
        seed_everything(derive_random_key(self._seed, step, virtual_rank))
        return batch

    @abstractmethod
    def expect(self, begin: BeginRound, ranks: Sequence[int]) -> None:
        """These virtual ranks of the round that has begun are mine and not dealt yet."""

    @abstractmethod
    def count_samples(self, step: int) -> int | None:
        """Samples of the whole step; None: known only once all have been loaded."""

    @abstractmethod
    def find_epoch(self, step: int) -> int:
        """From 0; of a step that has begun."""

    @abstractmethod
    def describe_samples(self, outcome: RoundOutcome, before: dict[int, str]) -> Samples:
        """The ledger's entry of a committed step; ``before`` is where streams stood then."""

    @abstractmethod
    def is_finished(self, outcome: RoundOutcome) -> bool:
        """That step was the last one."""

    @abstractmethod
    def has_ended_epoch(self, outcome: RoundOutcome) -> bool:
        """Every sample of the epoch has been seen with that step."""

    @abstractmethod
    def close(self) -> None:
        """End whatever runs beside this process."""

    @abstractmethod
    def _load_batch(self, step: int, virtual_rank: int) -> Batch: ...


def make_plan(
    length: int,
    global_batch: int,
    microbatch: int,
    until: str | int,
    *,
    virtual_ranks: int | None,
    seed: int,
) -> BatchPlan:
    """Check what the user asked for and work out the rest.

    Args:
        length: of the dataset, in samples; 0: a stream.
        global_batch: samples per step.
        microbatch: samples per virtual rank, unless ``virtual_ranks`` says otherwise.
        until: ``"3 epochs"``, ``"500 steps"`` or a number of steps.
        virtual_ranks: V, if it is asked for.
        seed: of the run.

    Raises:
        BadInput: numbers that do not fit together.
    """
    check_count("run.steps", "global_batch", global_batch)
    check_count("run.steps", "microbatch", microbatch)
    if virtual_ranks is not None:
        if global_batch % virtual_ranks:
            raise BadInput(
                f"a global batch of {global_batch} cannot be cut into {virtual_ranks} equal virtual ranks",
                means="every virtual rank has the same number of samples",
                do=f"choose --virtual-ranks that divides {global_batch}",
            )
        microbatch = global_batch // virtual_ranks
    if global_batch % microbatch:
        raise BadInput(
            f"a global batch of {global_batch} is not a multiple of the microbatch of {microbatch}",
            means="every virtual rank computes one microbatch",
            do=f"choose a microbatch that divides {global_batch}",
        )
    steps, epochs = _end(until)
    if length:
        steps, epochs = steps or epochs * count_steps_per_epoch(length, global_batch), 0
    return BatchPlan(
        length=length,
        global_batch=global_batch,
        microbatch=microbatch,
        virtual_ranks=global_batch // microbatch,
        steps=steps,
        seed=seed,
        epochs=epochs,
    )


def _end(until: str | int) -> tuple[int, int]:
    """``(steps, epochs)``, one of them 0."""
    if isinstance(until, int) and not isinstance(until, bool) and until > 0:
        return until, 0
    match = re.fullmatch(r"\s*(\d+)\s*(steps?|epochs?)\s*", str(until))
    if match is None or int(match[1]) < 1:
        raise BadInput(
            f"until={until!r} is not understood",
            means="a run ends after a number of steps or epochs",
            do="pass '3 epochs', '500 steps' or a number of steps",
        )
    return (0, int(match[1])) if match[2].startswith("epoch") else (int(match[1]), 0)


@runs_script
def measure_length(dataset: MapDataset) -> int:
    """Samples in a map-style dataset.

    Raises:
        BadInput: it is empty.
    """
    if length := len(dataset):
        return length
    raise BadInput("the dataset is empty", means="there is nothing to train on", do="check its length")


class MapBatchSource(BatchSource):
    """Deals a map-style dataset, shuffled anew each epoch.

    Args:
        dataset: map-style.
        plan: of the run.
        collate: list of samples to a batch; None: PyTorch's default.
        loaders: processes that load ahead; 0: this process loads what it needs when it needs it.
        prefetch: batches asked of each loader ahead of time.
        vital: this process is to die with any of its loaders.
    """

    def __init__(
        self,
        dataset: MapDataset,
        plan: BatchPlan,
        collate: Collate | None,
        *,
        loaders: int = 0,
        prefetch: int = 2,
        vital: bool = False,
    ) -> None:
        super().__init__(plan.seed)
        self._dataset = dataset
        self._plan = plan
        self._collate = collate or collate_default
        self._step = 0
        self._mine: set[int] = set()
        self._mine_in_order: list[int] = []
        self._waiting: tuple[int, ...] = ()
        self._loaders = (
            Loaders(self._load_samples, self._predict_requests, loaders, prefetch, vital=vital)
            if loaders
            else None
        )

    def expect(self, begin: BeginRound, ranks: Sequence[int]) -> None:
        if begin.step != self._step:
            self._mine.clear()
        self._step, self._waiting = begin.step, tuple(ranks)
        if not self._mine.issuperset(ranks):
            self._mine.update(ranks)
            self._mine_in_order = sorted(self._mine)
        if self._loaders is not None:
            self._loaders.foresee()

    def count_samples(self, step: int) -> int | None:
        return self._plan.samples(step).count

    def find_epoch(self, step: int) -> int:
        return self._plan.samples(step).epoch

    def describe_samples(self, outcome: RoundOutcome, before: dict[int, str]) -> Samples:  # noqa: ARG002 - no stream
        dealt = self._plan.samples(outcome.step)
        return Samples(dealt.epoch, dealt.start, dealt.stop, outcome.samples, f"{outcome.checksum:016x}")

    def has_ended_epoch(self, outcome: RoundOutcome) -> bool:
        return self._plan.samples(outcome.step).stop == self._plan.length

    def is_finished(self, outcome: RoundOutcome) -> bool:
        return outcome.step >= self._plan.steps

    def close(self) -> None:
        if self._loaders is not None:
            self._loaders.close()

    def _load_batch(self, step: int, virtual_rank: int) -> Batch:
        if virtual_rank >= self._filled(step):
            return Batch(None, 0, 0)
        ahead: Batch | None = self._loaders.take((step, virtual_rank)) if self._loaders else None
        if ahead is not None:
            return ahead
        batch = self._load_samples((step, virtual_rank))
        if self._loaders is not None:
            self._loaders.catch_up()
        return batch

    def _filled(self, step: int) -> int:
        """Virtual ranks that have samples in this step: all, but for the end of an epoch."""
        return -(-self._plan.samples(step).count // self._plan.microbatch)

    def _predict_requests(self) -> Iterable[Request]:
        """What this worker will likely compute, the next first: its virtual ranks, step after step."""
        ranks: Sequence[int] = self._waiting
        for step in range(self._step, self._plan.steps + 1 if self._mine else 0):
            filled = self._filled(step)
            for rank in ranks:
                if rank < filled:
                    yield step, rank
            ranks = self._mine_in_order

    @runs_script
    def _load_samples(self, request: Request) -> Batch:
        """Load a batch, in this process or in a loader: the same one."""
        step, virtual_rank = request
        plan = self._plan
        samples = plan.samples(step)
        positions = samples.of_virtual_rank(virtual_rank, plan.microbatch)
        indices = [find_sample_index(p, plan.length, plan.seed, samples.epoch) for p in positions]
        with use_one_thread():
            seed_everything(derive_loading_key(plan.seed, step, virtual_rank))
            inputs = self._collate(fetch_samples(self._dataset, indices))
        return Batch(inputs, len(indices), sum(map(hash_sample, indices)) & MASK)


@runs_script
def fetch_samples(dataset: MapDataset, indices: Sequence[int]) -> list[Any]:
    """Samples by index; at once from a dataset that can, as PyTorch's own loader asks it."""
    at_once = getattr(dataset, "__getitems__", None)
    if at_once is None:
        return [dataset[index] for index in indices]
    samples: list[Any] = at_once(list(indices))
    return samples


@runs_script
def load_in_order(dataset: MapDataset, positions: Sequence[int], collate: Collate | None) -> Batch:
    """A batch of an evaluation: samples as they stand in the dataset."""
    inputs = (collate or collate_default)(fetch_samples(dataset, positions))
    return Batch(inputs, len(positions), sum(map(hash_sample, positions)) & MASK)
