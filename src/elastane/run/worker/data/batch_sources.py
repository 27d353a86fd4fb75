"""Batches of virtual ranks: the plan that divides a dataset into batches, and the sources that load them."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from torch.utils.data import default_collate

from elastane.common.errors import BadInput
from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.records import Samples
from elastane.run.nouns.sites import AbsentRule
from elastane.run.nouns.spec import DATA_START, DataPosition
from elastane.run.protocol.actions import BeginRound
from elastane.run.protocol.messages import RoundOutcome
from elastane.run.protocol.sampling import (
    StepSamples,
    count_steps_to_end,
    derive_loading_key,
    derive_random_key,
    find_sample_index,
    find_step_samples,
    hash_sample,
)
from elastane.run.worker.data.dataset_checks import check_count, collate_samples
from elastane.run.worker.data.determinism import preserve_generators, seed_everything, use_one_thread
from elastane.run.worker.data.epoch_order import EpochOrder, build_order_error
from elastane.run.worker.data.loaders import Loaders, Request
from elastane.run.worker.exhaustion import runs_script

Collate = Callable[[list[Any]], Any]
MASK = (1 << 64) - 1


def collate_default(samples: list[Any]) -> Any:
    """Return a batch, collated as PyTorch's own loader does.

    Raises:
        BadInput: the samples cannot be collated.
    """
    return collate_samples(default_collate, samples)


class MapDataset(Protocol):
    """Any map-style dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Batch(msgspec.Struct, frozen=True):
    """The batch of one virtual rank; at the end of an epoch it may have no samples.

    Args:
        inputs: the collated samples; None: without samples.
        checksum: the checksum of the samples' indices, for the ledger.
        cursor: the position of the virtual rank's stream after the samples; None: not a stream.
    """

    inputs: Any
    samples: int
    checksum: int
    cursor: str | None = None


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The division of a dataset into steps and virtual ranks; the same on every worker.

    Args:
        length: the length of the dataset, in samples; 0: a stream, of unknown length.
        global_batch: the samples per step.
        microbatch: the samples per virtual rank, or in a run of rounds of each pass of an inner step.
        virtual_ranks: V, the number of virtual ranks.
        steps: the number of steps; 0: the run ends when a stream has ended ``epochs`` times.
        epochs: the epochs of a stream; 0: the run ends after ``steps``.
        dropped: the samples at the end of each epoch that are left out; another epoch leaves out others.
        began_at: where the data stood when the run began; the run has no step before.
        inner_steps: H, the steps that each virtual rank makes in a round; then ``global_batch`` are the
            samples per round. 1: the run has no rounds.
        passes: the microbatches of an inner step.
        rank_sites: the site of each virtual rank, where alone its samples are read; empty: they may move.
        absent: what a round does without one of these sites.
    """

    length: int
    global_batch: int
    microbatch: int
    virtual_ranks: int
    steps: int
    seed: int
    epochs: int = 0
    dropped: int = 0
    began_at: DataPosition = DATA_START
    inner_steps: int = 1
    passes: int = 1
    rank_sites: tuple[SiteName, ...] = ()
    absent: AbsentRule = "wait"

    @property
    def samples_per_rank(self) -> int:
        """The samples of each virtual rank in a full step or round."""
        return self.global_batch // self.virtual_ranks

    @property
    def samples_per_epoch(self) -> int:
        return self.length - self.dropped

    def find_samples(self, step: int) -> StepSamples:
        """Return the positions of a step in its epoch."""
        return find_step_samples(step, self.samples_per_epoch, self.global_batch, self.began_at)

    # -- the microbatches of a round -----------------------------------------------------------------------

    @property
    def step_samples(self) -> int:
        """The samples that all virtual ranks together take for one inner step."""
        return self.virtual_ranks * self.passes * self.microbatch

    def list_parts(self, virtual_rank: int, inner_step: int | None = None) -> list[int]:
        """Return the numbers of the microbatches of a virtual rank in its round, in their order.

        The first inner steps of all virtual ranks have the first samples, so that all ranks make as many
        inner steps in a round that is short, at the end of an epoch.

        Args:
            inner_step: only those of this inner step, from 1; None: of all.
        """
        steps = range(self.inner_steps) if inner_step is None else (inner_step - 1,)
        firsts = ((step * self.virtual_ranks + virtual_rank) * self.passes for step in steps)
        return [part for first in firsts for part in range(first, first + self.passes)]

    def find_rank(self, part: int) -> int:
        """Return the virtual rank of a microbatch of a round, or of a step."""
        return part // self.passes % self.virtual_ranks

    def count_part_samples(self, parts: Iterable[int], samples: int) -> int:
        """Return how many of the first ``samples`` positions of a round some microbatches have."""
        starts = (part * self.microbatch for part in parts)
        return sum(max(0, min(self.microbatch, samples - start)) for start in starts)


class BatchSource(ABC):
    """Loads the batches of virtual ranks, on any worker and in any order.

    Attributes:
        order_digest: the digest of the first epoch's order, if the script chooses it; empty: it does not.
        site_digests: the digests of the datasets of this worker's sites; empty: the data is not bound.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.order_digest = ""
        self.site_digests: dict[SiteName, str] = {}

    def load(self, step: int, virtual_rank: int) -> Batch:
        """Return the batch of a virtual rank, and seed the random numbers of its computation.

        Raises:
            Exception: the dataset raised it.
        """
        batch = self._load_batch(step, virtual_rank)
        # The computation draws the same numbers, regardless of the place of loading and the draws there.
        seed_everything(derive_random_key(self._seed, step, virtual_rank))
        return batch

    def can_check(self, _virtual_rank: int) -> bool:
        """Return whether loading the batch of another worker's virtual rank, for a spot check, is cheap."""
        return True

    def load_step(self, step: int, *, present: tuple[int, Any]) -> Iterable[Any]:
        """Yield the batches of all virtual ranks of a step that have samples, without a trace.

        A batch that this worker computes later is not loaded a second time.

        Args:
            present: the virtual rank that the script computes now, and its batch.

        Raises:
            BadInput: the source is a stream.
        """
        raise BadInput(
            "step.count was called in a run over a stream",
            means="each virtual rank reads its own shard, so no worker knows all microbatches of a step",
            do="pass the number of each microbatch as step.backward(loss_sum, weight=number)",
        )

    @abstractmethod
    def expect(self, begin: BeginRound, ranks: Sequence[int]) -> None:
        """Announce virtual ranks of the current round that this worker will load next."""

    @abstractmethod
    def count_samples(self, step: int) -> int | None:
        """Return the number of samples in a step; None: unknown before all are loaded."""

    @abstractmethod
    def find_epoch(self, step: int) -> int:
        """Return the number of the epoch, from 0, of a step that has begun."""

    def describe_order(self, step: int) -> tuple[int, str] | None:
        """Return the epoch of a step and the digest of its order; None: the script does not choose it."""
        return None

    @abstractmethod
    def describe_samples(self, outcome: RoundOutcome, before: dict[int, str]) -> Samples:
        """Return the ledger's entry of a committed step; ``before`` are the cursors before it."""

    @abstractmethod
    def is_finished(self, outcome: RoundOutcome) -> bool:
        """Return whether the committed step was the last one."""

    @abstractmethod
    def has_ended_epoch(self, outcome: RoundOutcome) -> bool:
        """Return whether the committed step was the last one of its epoch."""

    @abstractmethod
    def close(self) -> None:
        """End loader processes and open iterators."""

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
    drop_last: bool = False,
    began_at: DataPosition = DATA_START,
) -> BatchPlan:
    """Return the plan for the numbers that the script has passed.

    Args:
        length: the length of the dataset, in samples; 0: a stream.
        global_batch: the samples per step.
        microbatch: the samples per virtual rank, unless ``virtual_ranks`` is given.
        until: ``"3 epochs"``, ``"500 steps"`` or a number of steps.
        virtual_ranks: V; None: it follows from the microbatch.
        drop_last: each epoch leaves out the samples that do not fill a step.
        began_at: where the data stood when the run began; ``until`` counts what came before, too.

    Raises:
        BadInput: the numbers do not fit together.
    """
    check_count("run.steps", "global_batch", global_batch)
    check_count("run.steps", "microbatch", microbatch)
    if virtual_ranks is not None:
        if global_batch % virtual_ranks:
            raise BadInput(
                f"a global batch of {global_batch} does not divide into {virtual_ranks} virtual ranks",
                means="all virtual ranks of a step have the same number of samples",
                do=f"choose a number for --virtual-ranks that divides {global_batch}",
            )
        microbatch = global_batch // virtual_ranks
    if global_batch % microbatch:
        raise BadInput(
            f"a global batch of {global_batch} is not a multiple of the microbatch of {microbatch}",
            means="a step consists of whole microbatches, one for each virtual rank",
            do=f"choose a microbatch that divides {global_batch}",
        )
    steps, epochs = _parse_until(until)
    if drop_last:
        _check_whole_step(length, global_batch)
    dropped = length % global_batch if drop_last else 0
    if length:
        steps, epochs = steps or count_steps_to_end(epochs, length - dropped, global_batch, began_at), 0
    return BatchPlan(
        length=length,
        global_batch=global_batch,
        microbatch=microbatch,
        virtual_ranks=global_batch // microbatch,
        steps=steps,
        seed=seed,
        epochs=epochs,
        dropped=dropped,
        began_at=began_at,
    )


def _check_whole_step(length: int, global_batch: int) -> None:
    if not length:
        raise BadInput(
            "run.steps was given drop_last=True with a stream",
            means="the end of a stream is known only when it is read, so no step can be left out before",
            do="remove drop_last=True, or end the stream after whole steps",
        )
    if length < global_batch:
        raise BadInput(
            f"run.steps was given drop_last=True, and the {length} samples do not fill one step",
            means=f"a step has {global_batch} samples, so no epoch would have a step",
            do=f"use a global_batch of at most {length}, or remove drop_last=True",
        )


def _parse_until(until: str | int) -> tuple[int, int]:
    """Return ``(steps, epochs)``, one of them 0."""
    if isinstance(until, int) and not isinstance(until, bool) and until > 0:
        return until, 0
    match = re.fullmatch(r"\s*(\d+)\s*(steps?|epochs?)\s*", str(until))
    if match is None or int(match[1]) < 1:
        raise BadInput(
            f"run.steps was given an invalid until: {until!r}",
            means="until is the number of steps or epochs after which the run ends",
            do="pass a text such as '3 epochs' or '500 steps', or a number of steps",
        )
    return (0, int(match[1])) if match[2].startswith("epoch") else (int(match[1]), 0)


@runs_script
def measure_length(dataset: MapDataset) -> int:
    """Return the number of samples in a map-style dataset.

    Raises:
        BadInput: the dataset is empty.
    """
    if length := len(dataset):
        return length
    raise BadInput(
        "the dataset is empty", means="it has no sample to train on", do="check why its length is 0"
    )


class MapBatchSource(BatchSource):
    """Loads the batches of a map-style dataset, with another order in each epoch.

    Args:
        collate: builds a batch from a list of samples; None: PyTorch's default.
        loaders: the number of processes that load ahead; 0: this process loads each batch when needed.
        prefetch: the number of batches that each loader loads ahead.
        vital: this process dies if one of its loaders dies.
        order: the order of each epoch; None: the run shuffles it by its seed.
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
        order: EpochOrder | None = None,
    ) -> None:
        super().__init__(plan.seed)
        self._dataset = dataset
        self._order = order
        self.order_digest = order.digest() if order is not None else ""
        self._counted: dict[Request, Batch] = {}
        self._plan = plan
        self._collate = collate or collate_default
        self._step = 0
        self._ranks: set[int] = set()
        self._sorted_ranks: list[int] = []
        self._waiting: tuple[int, ...] = ()
        self._loaders = (
            Loaders(
                self._load_samples,
                self._predict_requests,
                loaders,
                prefetch,
                vital=vital,
                rehearsed=(plan.began_at.step + 1, 0),
            )
            if loaders
            else None
        )

    def expect(self, begin: BeginRound, ranks: Sequence[int]) -> None:
        if begin.step != self._step:
            self._ranks.clear()
            self._counted.clear()
        self._step, self._waiting = begin.step, tuple(ranks)
        if not self._ranks.issuperset(ranks):
            self._ranks.update(ranks)
            # In the order of virtual ranks, and of the inner steps of each.
            self._sorted_ranks = sorted(self._ranks, key=lambda part: (self._plan.find_rank(part), part))
        if self._loaders is not None:
            self._loaders.refresh()

    def count_samples(self, step: int) -> int | None:
        return self._plan.find_samples(step).count

    def find_epoch(self, step: int) -> int:
        return self._plan.find_samples(step).epoch

    def describe_samples(self, outcome: RoundOutcome, before: dict[int, str]) -> Samples:
        found = self._plan.find_samples(outcome.step)
        return Samples(found.epoch, found.start, found.stop, outcome.samples, f"{outcome.checksum:016x}")

    def describe_order(self, step: int) -> tuple[int, str] | None:
        epoch = self.find_epoch(step)
        return None if self._order is None else (epoch, self._order.digest(epoch))

    def has_ended_epoch(self, outcome: RoundOutcome) -> bool:
        return self._plan.find_samples(outcome.step).stop == self._plan.samples_per_epoch

    def is_finished(self, outcome: RoundOutcome) -> bool:
        return outcome.step >= self._plan.steps

    def close(self) -> None:
        if self._loaders is not None:
            self._loaders.close()

    def _load_batch(self, step: int, virtual_rank: int) -> Batch:
        if virtual_rank >= self._count_filled(step):
            return Batch(None, 0, 0)
        if (counted := self._counted.pop((step, virtual_rank), None)) is not None:
            return counted
        loaded: Batch | None = self._loaders.take((step, virtual_rank)) if self._loaders else None
        if loaded is not None:
            self._check_order(step, virtual_rank, loaded)
            return loaded
        batch = self._load_samples((step, virtual_rank))
        if self._loaders is not None:
            self._loaders.catch_up()
        return batch

    def _check_order(self, step: int, virtual_rank: int, loaded: Batch) -> None:
        """Check that a loader has the same order, with its older copy of the script's state."""
        if self._order is not None and loaded.checksum != _sum_indices(
            self._find_indices(step, virtual_rank)
        ):
            raise build_order_error(self.find_epoch(step))

    def load_step(self, step: int, *, present: tuple[int, Any]) -> Iterable[Any]:
        rank, inputs = present
        for other in range(self._count_filled(step)):
            if other == rank:
                yield inputs
                continue
            with preserve_generators():
                batch = self._load_batch(step, other)
            if other in self._waiting:
                self._counted[step, other] = batch
            yield batch.inputs

    def _count_filled(self, step: int) -> int:
        """Return the number of virtual ranks with samples in a step: all, except at the end of an epoch."""
        return -(-self._plan.find_samples(step).count // self._plan.microbatch)

    def _predict_requests(self) -> Iterable[Request]:
        """Yield this worker's probable next requests: its virtual ranks, step after step."""
        ranks: Sequence[int] = self._waiting
        for step in range(self._step, self._plan.steps + 1 if self._ranks else 0):
            filled = self._count_filled(step)
            for rank in ranks:
                if rank < filled:
                    yield step, rank
            ranks = self._sorted_ranks

    @runs_script
    def _load_samples(self, request: Request) -> Batch:
        """Load a batch, with the same result in this process and in a loader."""
        step, virtual_rank = request
        indices = self._find_indices(step, virtual_rank)
        with use_one_thread():
            seed_everything(derive_loading_key(self._plan.seed, step, virtual_rank))
            inputs = self._collate(fetch_samples(self._dataset, indices))
        return Batch(inputs, len(indices), _sum_indices(indices))

    def _find_indices(self, step: int, virtual_rank: int) -> list[int]:
        """Return the dataset indices of a virtual rank's samples."""
        plan = self._plan
        samples = plan.find_samples(step)
        positions = samples.list_positions(virtual_rank, plan.microbatch)
        if self._order is not None:
            return self._order.find_indices(samples.epoch, positions)
        return [find_sample_index(p, plan.length, plan.seed, samples.epoch) for p in positions]


def _sum_indices(indices: Iterable[int]) -> int:
    """Return the checksum of the indices of samples."""
    return sum(map(hash_sample, indices)) & MASK


@runs_script
def fetch_samples(dataset: MapDataset, indices: Sequence[int]) -> list[Any]:
    """Return samples by index, all in one call if the dataset has ``__getitems__``."""
    at_once = getattr(dataset, "__getitems__", None)
    if at_once is None:
        return [dataset[index] for index in indices]
    samples: list[Any] = at_once(list(indices))
    return samples


@runs_script
def load_in_order(dataset: MapDataset, positions: Sequence[int], collate: Collate | None) -> Batch:
    """Return a batch of an evaluation, with the samples at these positions of the dataset."""
    inputs = (collate or collate_default)(fetch_samples(dataset, positions))
    return Batch(inputs, len(positions), _sum_indices(positions))
