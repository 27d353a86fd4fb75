"""A shard of a stream yields the same samples on every worker that draws from it."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset, get_worker_info

from elastane.common.errors import BadInput
from elastane.run.protocol.actions import BeginRound
from elastane.run.protocol.commit import compute_outcome
from elastane.run.protocol.messages import Leaf
from elastane.run.protocol.sampling import Cursor, encode_cursor
from elastane.run.worker.data.batch_sources import make_plan
from elastane.run.worker.data.streams import StreamBatchSource, check_stream, detect_stream

from .lessons import CLASSES, FEATURES, Lesson, prepare_lesson

LENGTH = 27
RANKS = 4


class Numbers(IterableDataset):
    """Numbers of one shard with noise from every generator; the state is the position."""

    def __init__(self, shard: int, shards: int, length: int = LENGTH) -> None:
        self.own = range(shard, length, shards)
        self.at = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        while self.at < len(self.own):
            number = self.own[self.at]
            self.at += 1
            noise = torch.rand(1).item() + random.random() + np.random.rand()
            yield torch.full((FEATURES,), number + noise), number
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Whole(IterableDataset):
    """All numbers; a method divides them into shards."""

    def shard(self, index, count):
        return Numbers(index, count)

    def __iter__(self):
        return iter(())


class Announced(Numbers):
    """All numbers; divided into shards as for PyTorch's loader processes."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def __iter__(self):
        info = get_worker_info()
        self.own = range(info.id, LENGTH, info.num_workers)
        return super().__iter__()


class ItsIterator:
    """An iterable without a state; its iterator has one."""

    class Iterator:
        def __init__(self, numbers):
            self.numbers, self.inner = numbers, None

        def __iter__(self):
            return self

        def __next__(self):
            self.inner = self.inner or iter(self.numbers)
            return next(self.inner)

        def state_dict(self):
            return self.numbers.state_dict()

        def load_state_dict(self, state):
            self.numbers.load_state_dict(state)

    def __init__(self, shard, shards):
        self.shard, self.shards = shard, shards

    def __iter__(self):
        return ItsIterator.Iterator(Numbers(self.shard, self.shards))


class Windows(Numbers):
    """Numbers that are read in windows of five and yielded backwards; the state forgets the window."""

    def __iter__(self):
        while self.at < len(self.own):
            window = self.own[self.at : self.at + 5]
            self.at += len(window)
            for number in reversed(window):
                yield torch.full((FEATURES,), float(number)), number
        self.at = 0


class Chance:
    """Samples that no seed of the run decides."""

    def __init__(self, shard, shards):
        self.draw = random.Random().random

    def __iter__(self):
        return (torch.full((FEATURES,), self.draw()) for _ in range(9))


class Stateless:
    def __init__(self, shard, shards):
        self.numbers = Numbers(shard, shards)

    def __iter__(self):
        return iter(self.numbers)


def build_stateful_loader(shard, shards):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(Numbers(shard, shards), batch_size=None)


def build_shuffled():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"number": list(range(RANKS * 40))})
    return rows.to_iterable_dataset(num_shards=RANKS).shuffle(seed=1, buffer_size=10)


KINDS = {
    "factory": lambda: Numbers,
    "windows": lambda: Windows,
    "shuffle buffer": build_shuffled,
    "method": Whole,
    "worker info": Announced,
    "iterator": lambda: ItsIterator,
    "replayed": lambda: Stateless,
    "torchdata": lambda: build_stateful_loader,
}


WRONG = ["windows", "shuffle buffer"]


def build_plan(until="2 epochs"):
    return make_plan(0, 2 * RANKS, 2, until, virtual_ranks=None, seed=5)


def build_source(kind, warn=pytest.fail):
    plan = build_plan()
    source = detect_stream(KINDS[kind](), replay=kind == "replayed")
    assert source is not None
    return StreamBatchSource(source, plan, None, warn)


def play(kind, share_of, warn=pytest.fail):
    """Return every batch and ledger entry of two epochs; ``share_of`` chooses the source of each batch."""
    sources = [build_source(kind, warn) for _ in range(3)]
    batches, entries, outcome, step = [], [], None, 0
    while outcome is None or not sources[0].is_finished(outcome):
        step += 1
        before = outcome.cursors if outcome else {}
        leaves = {}
        for rank in range(RANKS):
            source = sources[share_of(step, rank)]
            source.expect(
                BeginRound(step, step, 1, 1, before),
                [r for r in range(RANKS) if share_of(step, r) == share_of(step, rank)],
            )
            batch = source.load(step, rank)
            leaves[rank] = Leaf(rank, 0, 0.0, 1.0, batch.samples, batch.checksum, cursor=batch.cursor)
            inputs = batch.inputs.values() if isinstance(batch.inputs, dict) else batch.inputs or ()
            batches.append((step, rank, [tensor.tolist() for tensor in inputs]))
        outcome = compute_outcome(step, step, leaves, {}, before)
        entries.append(sources[0].describe_samples(outcome, before))
    return batches, entries


@pytest.fixture(scope="module")
def reference():
    return play("factory", lambda _step, _rank: 0)


SHARES = {
    "alone": lambda _step, _rank: 0,
    "spread": lambda _step, rank: rank % 3,
    "moving": lambda step, rank: (step + rank) % 3,
    "back and forth": lambda step, rank: (step // 2 + rank // 2) % 2,
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WRONG])
def test_samples_do_not_depend_on_the_worker_that_draws_them(reference, kind, share):
    # torchdata makes lists of tuples, so its samples have another content.
    expected = play(kind, lambda _step, _rank: 0) if kind == "torchdata" else reference
    assert play(kind, share) == expected


@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("kind", WRONG)
def test_a_stream_with_a_wrong_state_is_read_again_from_its_beginning(kind, share):
    warnings = []
    expected = play(kind, lambda _step, _rank: 0, warnings.append)
    assert warnings, "one worker alone checks the state, too"
    assert play(kind, share, warnings.append) == expected
    assert all("yields other samples after load_state_dict" in text for text in warnings)


def test_a_right_state_is_not_suspected_if_all_shards_are_one_object():
    numbers = {}

    def get_shard(shard, shards):
        return numbers.setdefault(shard, Numbers(shard, shards))

    source = detect_stream(get_shard, replay=False)
    batches = StreamBatchSource(source, build_plan(), None, pytest.fail)
    before, drawn = {}, []
    for step in range(1, 5):
        batches.expect(BeginRound(step, step, 1, 1, before), [0])
        batch = batches.load(step, 0)
        drawn += [] if batch.inputs is None else batch.inputs[1].tolist()
        before = {0: batch.cursor} if batch.cursor else before
    assert drawn == list(range(0, LENGTH, RANKS))


def test_each_epoch_has_every_sample_once_and_the_ledger_proves_it(reference):
    batches, entries = reference
    epochs = {entry.epoch for entry in entries}
    assert epochs == {0, 1}
    for epoch in epochs:
        steps = [step for step, entry in enumerate(entries, 1) if entry.epoch == epoch]
        numbers = [n for step, _, batch in batches if step in steps and batch for n in batch[1]]
        assert sorted(numbers) == list(range(LENGTH))
        assert sum(entries[step - 1].count for step in steps) == LENGTH
        assert [entries[step - 1].ended for step in steps] == [False] * (len(steps) - 1) + [True]
    assert all(entry.count for entry in entries), "no step is empty, not even at the end of the shards"


def test_an_epoch_differs_from_the_one_before_only_in_its_random_numbers(reference):
    batches, entries = reference
    half = len(entries) // 2
    first = [batch[1] for step, _, batch in batches if step <= half and batch]
    second = [batch[1] for step, _, batch in batches if step > half and batch]
    assert first == second
    assert [b for s, _, b in batches if s <= half] != [b for s, _, b in batches if s > half]


def train(dataset, until, **options):
    learned = prepare_lesson(Lesson(lambda: nn.Linear(FEATURES, CLASSES)))
    steps = []
    for step in learned.run.steps(dataset, global_batch=8, microbatch=2, until=until, **options):
        numbers = []
        for inputs, number in step:
            # The first step begins with rehearsals.
            numbers += number.tolist() if step._rehearsal is None else []
            loss = functional.mse_loss(learned.model(inputs / LENGTH).mean(1), number / LENGTH)
            step.backward(loss)
        steps.append((step.epoch, numbers, step.loss))
    return learned, steps


def test_a_run_over_a_finite_stream_ends_after_its_epochs():
    _, steps = train(Numbers, "3 epochs")
    for epoch in range(3):
        assert sorted(n for e, numbers, _ in steps if e == epoch for n in numbers) == list(range(LENGTH))
    assert {epoch for epoch, _, _ in steps} == {0, 1, 2}


def test_a_run_over_a_stream_may_end_after_some_steps():
    _, steps = train(Numbers, 5)
    assert [epoch for epoch, _, _ in steps] == [0, 0, 0, 0, 1]


def test_the_loss_of_the_last_step_is_the_mean_over_its_samples():
    """An epoch of 27 samples in steps of 8 ends with a step of 3 samples."""
    learned = prepare_lesson(Lesson(lambda: nn.Linear(FEATURES, CLASSES)))
    for step in learned.run.steps(Numbers, global_batch=8, microbatch=2, until=4):
        sizes = []
        for _, number in step:
            sizes.append(len(number))
            step.backward(learned.model.weight.sum() * 0 + number.double().mean())
        if step.number == 4:
            assert sizes == [1, 1, 1]
            assert step.loss == pytest.approx((24 + 25 + 26) / 3)


@pytest.mark.parametrize(
    ("dataset", "options", "text"),
    [
        (Stateless, {}, "cannot be resumed: it has no state_dict"),
        (iter([1]), {}, "can be read only once"),
        (Numbers(0, 1), {}, "does not ask for the number of its shard"),
        (Numbers, {"loaders": 2}, "loaders=2 with a stream"),
        (lambda shard, shards: Numbers(shard, shards, length=0), {}, "the stream is empty"),
        (Windows, {}, "yields other samples after load_state_dict"),
        (Chance, {"replay": True}, "yields other samples when it is read again"),
    ],
)
def test_an_unusable_stream_is_refused_at_the_start(dataset, options, text):
    with pytest.raises(BadInput, match=text):
        train(dataset, "1 epoch", **options)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_loader_that_yields_batches_is_refused():
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    with pytest.raises(BadInput, match="the stream yields batches"):
        train(lambda s, n: torchdata.StatefulDataLoader(Numbers(s, n), batch_size=2), "1 epoch")


def test_a_state_that_is_not_json_is_refused():
    class Keyed(Numbers):
        def state_dict(self):
            return {1: self.at}

    with pytest.raises(BadInput, match="changes when it is written as JSON"):
        train(Keyed, "1 epoch")


def test_another_stream_has_another_digest():
    def digest(dataset):
        source = detect_stream(dataset, replay=False)
        assert source is not None
        return check_stream(source, build_plan(), dataset)

    assert digest(Numbers) == digest(Numbers)
    assert digest(Numbers) != digest(lambda shard, shards: Numbers(shard + 1, shards))


def test_a_round_without_training_does_not_change_the_cursors():
    before = {0: encode_cursor(Cursor(0, 3))}
    outcome = compute_outcome(4, 2, {0: Leaf(0, 0, sums={"seen": 1.0})}, {}, before)
    assert outcome.cursors == before


class TwoFiles(IterableDataset):
    """A dataset in two files, as of ``datasets``, which raises an IndexError for the third shard."""

    num_shards = 2

    def __iter__(self):
        return iter([0, 1])

    def shard(self, num_shards, index):
        return [[0, 1]][index % num_shards]


def test_fewer_files_than_virtual_ranks_are_refused():
    with pytest.raises(BadInput, match="the dataset has 2 shards, too few for 4 virtual ranks"):
        train(TwoFiles(), "1 epoch", replay=True)
