"""Streams: shard ``v`` of ``V`` belongs to virtual rank ``v``, on any worker.

Each step commits the state of every shard after its microbatch. The next worker that computes the virtual
rank continues exactly there. The same worker uses its open iterator; another one opens an iterator at the
committed cursor.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
from torch.utils.data import IterableDataset, _utils

from elastane.common.errors import BadInput
from elastane.run.nouns.records import Samples
from elastane.run.protocol.actions import BeginRound
from elastane.run.protocol.messages import RoundOutcome
from elastane.run.protocol.sampling import (
    Cursor,
    StreamPosition,
    decode_cursor,
    decode_positions,
    derive_loading_key,
    derive_stream_key,
    encode_cursor,
    find_next_positions,
    hash_stream_sample,
)
from elastane.run.worker.data.batch_sources import (
    MASK,
    Batch,
    BatchPlan,
    BatchSource,
    Collate,
    collate_default,
)
from elastane.run.worker.data.determinism import seed_everything, use_one_thread
from elastane.run.worker.data.fingerprint import digest_stream, hash_content
from elastane.run.worker.exhaustion import runs_script
from elastane.run.worker.values import describe_value

Factory: TypeAlias = Callable[[int, int], Iterable[Any]]
"""A function that takes ``(shard, shards)`` and returns an iterable over the samples of that shard."""

OPENING = -1  # no sample has this position

CHECKED_UNTIL = 64
"""Up to this position each state of one shard is checked, then those at every doubling."""

COMPARED = 8
"""So many samples after the first one are compared with those of a second iterator at the start."""

DISCONTINUES = "the stream ({}) yields other samples after load_state_dict than where its state was taken"


class Stream(msgspec.Struct, frozen=True):
    """A stream, with the way to open its shards.

    Args:
        open: takes ``(shard, shards)`` and returns a new iterable.
        asks_for_shard: the dataset finds its shard with ``torch.utils.data.get_worker_info``.
        replay: a shard reaches a cursor by reading all earlier samples again, even if it has a state.
    """

    open: Factory
    asks_for_shard: bool
    replay: bool


def detect_stream(dataset: object, *, replay: bool) -> Stream | None:
    """Return the stream of a dataset; None: the dataset is map-style.

    Raises:
        BadInput: the dataset cannot be opened once for each shard.
    """
    makes_shards = callable(dataset) and not hasattr(dataset, "__iter__")
    if isinstance(dataset, type) or (makes_shards and not hasattr(dataset, "__getitem__")):
        return Stream(cast("Factory", dataset), asks_for_shard=False, replay=replay)
    if hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset):
        return None
    shard = getattr(dataset, "shard", None)
    if callable(shard):
        # Hugging Face's datasets use other names for the two numbers.
        is_hugging_face = "num_shards" in inspect.signature(shard).parameters
        open_shard = (lambda v, n: shard(num_shards=n, index=v)) if is_hugging_face else shard
        return Stream(open_shard, asks_for_shard=False, replay=replay)
    if isinstance(dataset, IterableDataset):
        return Stream(lambda _shard, _shards: copy.deepcopy(dataset), asks_for_shard=True, replay=replay)
    raise BadInput(
        f"run.steps was given {describe_value(dataset)}, which has no shards to open",
        means="each virtual rank reads its own shard, so the run opens a stream once for each of them",
        do="pass a function (shard, shards) that returns an iterable over that shard, "
        "such as a StatefulDataLoader with batch_size=None",
    )


def check_stream(source: Stream, plan: BatchPlan, dataset: object) -> str:
    """Check a stream at the start, so that it does not fail later in the run; return its digest.

    Raises:
        BadInput: the stream yields batches, cannot be resumed, divided into shards or recorded, or does not
            continue where its state was taken.
    """
    _check_enough_shards(getattr(dataset, "num_shards", None), plan)
    shard = _Shard(source, 0, plan, Cursor())
    if getattr(shard.iterable, "batch_size", None) is not None:
        raise BadInput(
            "the stream yields batches",
            means="the run makes microbatches from samples, so that it knows their number",
            do="build the DataLoader with batch_size=None",
        )
    if shard.stateful is None and not source.replay:
        raise BadInput(
            f"the stream ({type(shard.iterable).__name__}) cannot be resumed: it has no state_dict and "
            "load_state_dict",
            means="a worker that takes over a virtual rank could not continue its stream",
            do="give the dataset (or its iterator) both methods, or pass replay=True to run.steps: "
            "then a worker that takes over reads the shard from its beginning, which takes ever longer",
        )
    samples, text = shard.draw(1)
    if source.asks_for_shard and plan.virtual_ranks > 1 and not shard.worker_info.was_read:
        raise BadInput(
            f"the dataset ({type(dataset).__name__}) does not ask for the number of its shard",
            means=f"each of the {plan.virtual_ranks} virtual ranks would train on the same samples",
            do="give it a method shard(index, count) that returns the dataset of one shard, "
            "or have it read only the samples of its shard, by torch.utils.data.get_worker_info()",
        )
    state = shard.last_state
    if msgspec.json.decode(msgspec.json.encode(state)) != state:
        raise BadInput(
            f"the state of the stream ({type(shard.iterable).__name__}) changes when it is written as JSON",
            means="the state goes to other workers and into checkpoints as JSON",
            do="return only numbers, strings, booleans, None, lists and dicts with string keys from "
            "state_dict()",
        )
    assert text, "a cursor is never empty"
    drawn = [shard.draw(1)[0] for _ in range(COMPARED)]
    second = _Shard(source, 0, plan, decode_cursor(text))
    if hash_content(drawn) != hash_content([second.draw(1)[0] for _ in range(COMPARED)]):
        raise shard.build_error()
    return digest_stream(dataset, samples)


def _check_enough_shards(shards: object, plan: BatchPlan) -> None:
    """Refuse a dataset of Hugging Face with fewer shards, such as files, than virtual ranks."""
    if isinstance(shards, int) and shards < plan.virtual_ranks:
        raise BadInput(
            f"the dataset has {shards} shards, too few for {plan.virtual_ranks} virtual ranks",
            means="each virtual rank reads shards of its own",
            do=f"write the data in at least {plan.virtual_ranks} files, or use to_iterable_dataset("
            f"num_shards={plan.virtual_ranks}); or lower the number of virtual ranks: elastane run "
            "--virtual-ranks N, or a larger microbatch",
        )


class StreamBatchSource(BatchSource):
    """Loads the batches of a stream.

    Args:
        collate: builds a batch from a list of samples; None: PyTorch's default.
        warn: takes a warning about the stream.
        loaders: must be 0: a stream has no positions that loader processes could load.

    Raises:
        BadInput: ``loaders`` is not 0.
    """

    def __init__(
        self,
        source: Stream,
        plan: BatchPlan,
        collate: Collate | None,
        warn: Callable[[str], None],
        *,
        loaders: int = 0,
    ) -> None:
        if loaders:
            raise BadInput(
                f"run.steps was given loaders={loaders} with a stream",
                means="loader processes load samples by position, and a stream has none",
                do="remove loaders=, or give each shard its own processes: num_workers of a "
                "StatefulDataLoader",
            )
        super().__init__(plan.seed)
        self._source = source
        self._plan = plan
        self._collate = collate or collate_default
        self._warn = warn
        self._step = 0
        self._checked_rank, self._next_check = 0, 1
        self._cursors: dict[int, str] = {}
        self._positions: tuple[StreamPosition, ...] = (StreamPosition(),) * plan.virtual_ranks
        self._open_shards: dict[int, _Shard] = {}

    def expect(self, begin: BeginRound, ranks: Sequence[int]) -> None:
        if begin.step == self._step:
            return
        self._step, self._cursors = begin.step, begin.cursors
        self._positions = find_next_positions(begin.cursors, self._plan.virtual_ranks)
        self._open_shards = {rank: shard for rank, shard in self._open_shards.items() if rank in ranks}
        self._checked_rank = min(ranks, default=0)

    def can_check(self, virtual_rank: int) -> bool:
        # Without a state, a shard is read from its beginning.
        text = self._cursors.get(virtual_rank)
        has_state = text is not None and decode_cursor(text).state is not None and not self._source.replay
        return has_state or self._positions[virtual_rank].position < CHECKED_UNTIL

    def count_samples(self, step: int) -> int | None:
        return None

    def find_epoch(self, step: int) -> int:
        return self._positions[0].epoch

    def describe_samples(self, outcome: RoundOutcome, before: dict[int, str]) -> Samples:
        """Return the ledger's entry of a committed step.

        Raises:
            BadInput: the stream has no samples.
        """
        if not outcome.samples:
            raise BadInput(
                "the stream is empty",
                means="no shard has a sample to train on",
                do="check that the function or dataset given to run.steps yields samples",
            )
        starts = find_next_positions(before, self._plan.virtual_ranks)
        stops = decode_positions(outcome.cursors, self._plan.virtual_ranks)
        return Samples(
            epoch=starts[0].epoch,
            start=sum(place.position for place in starts),
            stop=sum(place.position for place in stops),
            count=outcome.samples,
            checksum=f"{outcome.checksum:016x}",
            shards={
                shard: (start.position, stop.position)
                for shard, (start, stop) in enumerate(zip(starts, stops, strict=True))
                if start.position != stop.position
            },
            ended=all(place.ended for place in stops),
            content=f"{sum(b.content - a.content for a, b in zip(starts, stops, strict=True)) & MASK:016x}",
        )

    def has_ended_epoch(self, outcome: RoundOutcome) -> bool:
        return all(place.ended for place in decode_positions(outcome.cursors, self._plan.virtual_ranks))

    def is_finished(self, outcome: RoundOutcome) -> bool:
        if self._plan.steps:
            return outcome.step >= self._plan.steps
        now = decode_positions(outcome.cursors, self._plan.virtual_ranks)
        return all(place.ended and place.epoch + 1 >= self._plan.epochs for place in now)

    def close(self) -> None:
        self._open_shards.clear()

    def _load_batch(self, step: int, virtual_rank: int) -> Batch:
        place = self._positions[virtual_rank]
        if place.ended:
            return Batch(None, 0, 0)
        with use_one_thread():
            shard = self._open_shard(virtual_rank, place)
            samples, text = shard.draw(self._plan.microbatch)
            if virtual_rank == self._checked_rank and place.position >= self._next_check:
                text = self._check_state(virtual_rank, shard, place)
            seed_everything(derive_loading_key(self._plan.seed, step, virtual_rank))
            inputs = self._collate(samples) if samples else None
        positions = range(place.position, place.position + len(samples))
        checksum = sum(hash_stream_sample(virtual_rank, position) for position in positions) & MASK
        return Batch(inputs, len(samples), checksum, text)

    def _open_shard(self, virtual_rank: int, place: StreamPosition) -> "_Shard":
        """Return the shard, open at the cursor of the last committed step."""
        text = self._cursors.get(virtual_rank) if place.position else None
        shard = self._open_shards.get(virtual_rank)
        if shard is None or shard.text != text or text is None:
            cursor = Cursor(epoch=place.epoch) if text is None else decode_cursor(text)
            shard = self._open_shards[virtual_rank] = self._open_at(virtual_rank, cursor)
        return shard

    def _open_at(self, virtual_rank: int, cursor: Cursor) -> "_Shard":
        """Return a shard that is open at a cursor, by its state if it has one and this restores the shard.

        Raises:
            BadInput: the shard yields other samples than before, even from its beginning.
        """
        shard = _Shard(self._source, virtual_rank, self._plan, cursor)
        if not shard.continues and shard.stateful is not None:
            self._give_up_states(shard)
            shard = _Shard(self._source, virtual_rank, self._plan, cursor)
        if not shard.continues:
            raise shard.build_error()
        return shard

    def _check_state(self, virtual_rank: int, shard: "_Shard", place: StreamPosition) -> str:
        """Compare the samples just drawn with those of a shard that is opened at the state before them.

        Returns:
            The cursor after the samples.
        """
        if shard.stateful is None or shard.opened_at == place.position:
            return shard.text
        self._next_check = place.position * 2 if place.position > CHECKED_UNTIL else 1
        again = self._open_at(virtual_rank, decode_cursor(self._cursors[virtual_rank]))
        again.draw(self._plan.microbatch)
        if again.samples_drawn != shard.samples_drawn:
            self._give_up_states(shard)
            again = self._open_at(virtual_rank, decode_cursor(self._cursors[virtual_rank]))
            again.draw(self._plan.microbatch)
        # The two may share something, such as a file, so the one that was moved last is used.
        self._open_shards[virtual_rank] = again
        return again.text

    def _give_up_states(self, shard: "_Shard") -> None:
        """Use states no more; workers that take over a shard read it from its beginning."""
        text = DISCONTINUES.format(type(shard.iterable).__name__)
        self._warn(f"{text}, so workers that take over a shard read it again from its beginning")
        self._source = msgspec.structs.replace(self._source, replay=True)
        for opened in self._open_shards.values():
            opened.stateful = None


class _Sample(NamedTuple):
    """A sample, and the hash of its content."""

    value: Any
    content: int


class _Shard:
    """An open iterator over one shard.

    Attributes:
        text: the present cursor, encoded; empty before the first draw.
        stateful: the object that has the state; None: the shard has no state.
        opened_at: the position at which the shard was opened.
        continues: the next sample is the one that the cursor announces.
    """

    @runs_script
    def __init__(self, source: Stream, shard: int, plan: BatchPlan, cursor: Cursor) -> None:
        self._shard, self._seed, self._epoch = shard, plan.seed, cursor.epoch
        self.worker_info = _WorkerInfo(shard, plan.virtual_ranks, plan.seed)
        self._asks_for_shard = source.asks_for_shard
        self.text = ""
        self.last_state: Any = None
        self.opened_at = cursor.position
        self._ahead: list[_Sample] = []
        self._pulled, self._content = 0, cursor.content
        seed_everything(derive_stream_key(plan.seed, cursor.epoch, shard, OPENING))
        with self._announce_shard():
            self.iterable = source.open(shard, plan.virtual_ranks)
            if callable(set_epoch := getattr(self.iterable, "set_epoch", None)):
                set_epoch(cursor.epoch)
            # A shard that was read from its beginning goes on without a state.
            has_no_state = source.replay or (cursor.position > 0 and cursor.state is None)
            iterable_has_state = not has_no_state and _has_state(self.iterable)
            if iterable_has_state and cursor.state is not None:
                self.iterable.load_state_dict(cursor.state)  # type: ignore[attr-defined]
            self._iterator: Iterator[Any] = iter(self.iterable)
            iterator_has_state = not (has_no_state or iterable_has_state) and _has_state(self._iterator)
            if iterator_has_state and cursor.state is not None:
                self._iterator.load_state_dict(cursor.state)  # type: ignore[attr-defined]
        self.stateful: Any = None
        if iterable_has_state or iterator_has_state:
            self.stateful = self.iterable if iterable_has_state else self._iterator
        if self.stateful is None:
            while self._pulled < cursor.position and self._pull():
                pass
        self._pulled = cursor.position
        self.continues = True
        if cursor.following is not None:
            self._ahead = self._pull()
            self.continues = [sample.content for sample in self._ahead] == [cursor.following]

    @runs_script
    def draw(self, count: int) -> tuple[list[Any], str]:
        """Return the next ``count`` samples, fewer at the end, and the cursor after them."""
        drawn, self._ahead = self._ahead, []
        ended = False
        while len(drawn) < count and not ended:
            following = self._pull()
            drawn += following
            ended = not following
        self._content = (self._content + sum(sample.content for sample in drawn)) & MASK
        cursor = Cursor(self._epoch, self._pulled, ended=True, content=self._content)
        # The state before the look-ahead: a worker that opens the shard there draws the same sample again.
        state = None if ended or self.stateful is None else self.stateful.state_dict()
        # The stream may change the state that it has returned.
        encoded = msgspec.Raw(msgspec.json.encode(state))
        self._ahead = [] if ended else self._pull()
        for sample in self._ahead:
            cursor = msgspec.structs.replace(cursor, ended=False, state=encoded, following=sample.content)
        self.text, self.last_state = encode_cursor(cursor), state
        return [sample.value for sample in drawn], self.text

    @runs_script
    def _pull(self) -> list[_Sample]:
        """Return the next sample in a list, which is empty at the end."""
        # Seed each sample, so that looking one ahead does not change its random numbers.
        seed_everything(derive_stream_key(self._seed, self._epoch, self._shard, self._pulled))
        with self._announce_shard():
            for sample in self._iterator:
                self._pulled += 1
                return [_Sample(sample, hash_content(sample))]
        return []

    @property
    def samples_drawn(self) -> tuple[int, ...]:
        """The contents of the samples drawn in this epoch, added up, and of the following one."""
        return self._content, *(sample.content for sample in self._ahead)

    def build_error(self) -> BadInput:
        """Return the error of a shard that does not continue with the samples that it had before."""
        name = type(self.iterable).__name__
        if self.stateful is None:
            return BadInput(
                f"the stream ({name}) yields other samples when it is read again from its beginning",
                means="a worker that takes over a virtual rank would train on other samples",
                do="let the samples depend only on the shard, on set_epoch(epoch) and on the global random "
                "generators, which the run seeds for each sample",
            )
        return BadInput(
            DISCONTINUES.format(name),
            means="a worker that takes over a virtual rank would lose samples or repeat them",
            do="return from state_dict() what was read ahead too, such as the samples of a shuffle buffer; "
            "or pass replay=True to run.steps: a worker that takes over then reads the shard from its start",
        )

    def _announce_shard(self) -> AbstractContextManager[None]:
        return _announce(self.worker_info) if self._asks_for_shard else nullcontext()


class _WorkerInfo:
    """The result of ``get_worker_info`` in a dataset that shards itself; records whether it was read."""

    dataset = None

    def __init__(self, shard: int, shards: int, seed: int) -> None:
        self._id, self._num_workers, self.seed = shard, shards, seed
        self.was_read = False

    @property
    def id(self) -> int:
        self.was_read = True
        return self._id

    @property
    def num_workers(self) -> int:
        self.was_read = True
        return self._num_workers


@contextmanager
def _announce(info: _WorkerInfo) -> Iterator[None]:
    worker: Any = _utils.worker
    worker._worker_info = info
    try:
        yield
    finally:
        worker._worker_info = None


def _has_state(thing: object) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
