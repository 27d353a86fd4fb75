"""The coverage of each epoch: how often its samples were trained on, and the problems that shows."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from elastane.run.nouns.records import LedgerLine, Samples
from elastane.run.nouns.spec import DATA_START, DataPosition, Pinned


class SampleRules(msgspec.Struct, frozen=True):
    """The functions of `elastane.run.protocol` on which coverage depends.

    They are passed as values, because this package may not import the protocol, and so that tests can use
    their own.

    Args:
        index: maps ``(position, length, seed, epoch)`` to the dataset index at that position.
        hash: 64-bit hash of a dataset index.
        stream_hash: 64-bit hash of ``(shard, position)``.
    """

    index: Callable[[int, int, int, int], int]
    hash: Callable[[int], int]
    stream_hash: Callable[[int, int], int]


class LedgerProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One broken promise, and how it was broken.

    ``kind`` is ``steps``, ``generations``, ``shares``, ``samples``, ``checksum``, ``loss``, ``norm``,
    ``digest``, ``sites`` or ``model``.
    """

    kind: str
    text: str
    step: int | None = None


class EpochCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """How often the samples of one epoch were trained on.

    Args:
        epoch: its number, from 0.
        samples: number in the dataset; in a stream, number up to the positions of its shards.
        once: samples seen exactly once.
        never: samples not seen, which is a problem only if the epoch is finished.
        repeated: samples seen twice or more often.
        finished: the epoch's last sample was assigned, all shards of a stream ended, or a later epoch has
            begun.
    """

    epoch: int
    samples: int
    once: int
    never: int
    repeated: int
    finished: bool


def check_coverage(
    ledger: Sequence[LedgerLine], pinned: Pinned, rules: SampleRules, began_at: DataPosition = DATA_START
) -> tuple[tuple[EpochCoverage, ...], list[LedgerProblem]]:
    """Count how often each sample was seen, and find the problems.

    For each step the function compares the recorded positions, the recorded count, and the checksum that the
    workers summed over the indices that they actually loaded. If the script chooses the order, no index can
    be computed; then the checksums of each whole epoch must add up to that of all samples. Samples before
    ``began_at``, which another run has trained on, count as seen.
    """
    length, end = pinned.dataset_length, pinned.dataset_length - pinned.dropped
    is_ordered = bool(pinned.order_digest)
    loaded: defaultdict[int, int] = defaultdict(int)
    problems = [*find_position_problems(ledger, pinned, began_at)]
    seen: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(length))
    ended: set[int] = set()
    for position in range(min(began_at.start, end)):
        index = position if is_ordered else rules.index(position, length, pinned.seed, began_at.epoch)
        seen[began_at.epoch][index] = 1
    for line in ledger:
        samples = line.samples
        if not 0 <= samples.start < samples.stop <= end:
            text = f"positions [{samples.start}, {samples.stop}) are outside an epoch of {end} samples"
            problems.append(LedgerProblem("samples", text, line.step))
            continue
        if samples.count != samples.stop - samples.start:
            text = (
                f"{samples.count} samples were loaded for the {samples.stop - samples.start} "
                f"positions [{samples.start}, {samples.stop})"
            )
            problems.append(LedgerProblem("samples", text, line.step))
        total = 0
        times = seen[samples.epoch]
        for position in range(samples.start, samples.stop):
            index = position if is_ordered else rules.index(position, length, pinned.seed, samples.epoch)
            times[index] = min(times[index] + 1, 255)
            total += rules.hash(index)
        if is_ordered:
            loaded[samples.epoch] += read_checksum(samples.checksum)
        elif (expected := f"{total % 2**64:016x}") != samples.checksum:
            text = f"the loaded samples sum to {samples.checksum}, the assigned ones to {expected}"
            problems.append(LedgerProblem("checksum", text, line.step))
        if samples.stop == end:
            ended.add(samples.epoch)
    # Which samples an order leaves out is not known, so only whole epochs have a known sum.
    if is_ordered and not pinned.dropped:
        whole = ended - {began_at.epoch} if began_at.start else ended
        problems += find_ordered_problems(loaded, whole, sum(map(rules.hash, range(length))) % 2**64)
    newest = max(seen, default=-1)
    if newest >= 0 and sorted(seen) != [*range(began_at.epoch, began_at.epoch + len(seen))]:
        text = f"some epochs before the last are missing; trained on: {', '.join(map(str, sorted(seen)))}"
        problems.append(LedgerProblem("samples", text))
    epochs = tuple(count_epoch(e, seen[e], e < newest or e in ended) for e in sorted(seen))
    found = (problem for epoch in epochs for problem in find_epoch_problems(epoch, pinned.dropped))
    return epochs, [*problems, *found]


def read_checksum(text: str) -> int:
    """Return the number of a recorded checksum; -1 if the text is not a number."""
    try:
        return int(text, 16)
    except ValueError:
        return -1


def find_ordered_problems(
    loaded: Mapping[int, int], ended: Iterable[int], expected: int
) -> Iterable[LedgerProblem]:
    """Find the whole epochs, in an order of the script, that did not load each sample once.

    Args:
        loaded: the sum of the checksums of each epoch.
        ended: the epochs that have assigned their last sample.
        expected: the checksum over all samples.
    """
    for epoch in sorted(ended):
        if (total := loaded[epoch] % 2**64) != expected:
            text = (
                f"the samples loaded in epoch {epoch} sum to {total:016x}, all samples to {expected:016x}: "
                "some were loaded twice or not at all"
            )
            yield LedgerProblem("checksum", text)


def find_position_problems(
    ledger: Sequence[LedgerLine], pinned: Pinned, began_at: DataPosition
) -> Iterable[LedgerProblem]:
    """Find the steps with positions that do not follow those of the previous step."""
    length = pinned.dataset_length - pinned.dropped
    step, epoch, start = began_at.step + 1, began_at.epoch, began_at.start
    for line in ledger:
        samples = line.samples
        # After a gap in the steps, which another check reports, no position can be predicted.
        if line.step == step and not (samples.shards or samples.ended):
            stop = min(start + pinned.global_batch, length)
            if (samples.epoch, samples.start, samples.stop) != (epoch, start, stop):
                text = (
                    f"positions [{samples.start}, {samples.stop}) of epoch {samples.epoch}, "
                    f"expected [{start}, {stop}) of epoch {epoch}"
                )
                yield LedgerProblem("samples", text, line.step)
        elif samples.shards or samples.ended:
            yield LedgerProblem(
                "samples", "the dataset has a length, but the line is that of a stream", line.step
            )
        at_end = samples.stop >= length
        step, epoch, start = (
            line.step + 1,
            samples.epoch + at_end,
            0 if at_end else samples.stop,
        )


class _Shards:
    """The positions of a stream's shards in one epoch, and the samples skipped or drawn again."""

    def __init__(self) -> None:
        self.at: defaultdict[int, int] = defaultdict(int)
        self.never = self.repeated = 0
        self.ended = False

    def move(self, samples: Samples, virtual_ranks: int) -> Iterable[str]:
        """Add the samples of one step; yield their problems."""
        if self.ended:
            yield f"epoch {samples.epoch} continues after its end"
        for shard, (start, stop) in sorted(samples.shards.items()):
            position = self.at[shard]
            if not (0 <= shard < virtual_ranks and 0 <= start < stop):
                yield f"shard {shard}, positions [{start}, {stop}): there are no such samples"
                continue
            if start != position:
                yield f"shard {shard} was at {position} and was drawn from {start} on"
            self.never += max(0, start - position)
            self.repeated += max(0, min(stop, position) - start)
            self.at[shard] = max(position, stop)
        moved = sum(stop - start for start, stop in samples.shards.values())
        if moved != samples.count:
            yield f"{samples.count} samples were loaded, but the shards advanced by {moved}"
        self.ended = self.ended or samples.ended

    def count_epoch(self, epoch: int) -> EpochCoverage:
        length = sum(self.at.values())
        return EpochCoverage(
            epoch=epoch,
            samples=length,
            once=length - self.never - self.repeated,
            never=self.never,
            repeated=self.repeated,
            finished=self.ended,
        )


def check_stream_coverage(
    ledger: Sequence[LedgerLine], pinned: Pinned, rules: SampleRules, began_at: DataPosition = DATA_START
) -> tuple[tuple[EpochCoverage, ...], list[LedgerProblem]]:
    """Count how often each sample of a stream was drawn; each shard must continue without a gap."""
    problems: list[LedgerProblem] = []
    epochs: defaultdict[int, _Shards] = defaultdict(_Shards)
    if began_at.shards:
        epochs[began_at.epoch].at.update(began_at.shards)
    for line in ledger:
        samples = line.samples
        found = epochs[samples.epoch].move(samples, pinned.virtual_ranks)
        problems += [LedgerProblem("samples", text, line.step) for text in found]
        expected = sum(
            rules.stream_hash(shard, position)
            for shard, (start, stop) in samples.shards.items()
            for position in range(start, stop)
        )
        if (assigned := f"{expected % 2**64:016x}") != samples.checksum:
            text = f"the loaded samples sum to {samples.checksum}, the assigned ones to {assigned}"
            problems.append(LedgerProblem("checksum", text, line.step))
    unfinished = [
        epoch
        for epoch in range(began_at.epoch, max(epochs, default=0))
        if epoch not in epochs or not epochs[epoch].ended
    ]
    if unfinished:
        text = f"epochs {', '.join(map(str, unfinished))} did not end before the next began"
        problems.append(LedgerProblem("samples", text))
    return tuple(shards.count_epoch(epoch) for epoch, shards in sorted(epochs.items())), problems


def compare_stream_epochs(
    ledger: Sequence[LedgerLine], began_at: DataPosition = DATA_START
) -> tuple[list[LedgerProblem], tuple[str, ...]]:
    """Compare the finished epochs of a stream, because nothing says which samples a stream has.

    An epoch that another run has begun is left out: this ledger has only its end.

    Returns:
        The epochs that are longer or shorter than the first one, and the facts that are taken on trust.
    """
    counts, contents = Counter[int](), Counter[int]()
    for line in ledger:
        counts[line.samples.epoch] += line.samples.count
        contents[line.samples.epoch] += read_checksum(line.samples.content)
    partial = {began_at.epoch} if began_at.shards else set[int]()
    ended = sorted({line.samples.epoch for line in ledger if line.samples.ended} - partial)
    if len(ended) <= 1:
        which = "only one epoch has ended" if ended else "no epoch has ended"
        return [], (f"that an epoch has every sample of the stream is taken on trust: {which}",)
    first = ended[0]
    problems = [
        LedgerProblem(
            "samples",
            f"epoch {epoch} ended after {counts[epoch]} samples, epoch {first} after {counts[first]}",
        )
        for epoch in ended
        if counts[epoch] != counts[first]
    ]
    if problems or len({contents[epoch] % 2**64 for epoch in ended}) == 1:
        return problems, ()
    remark = (
        "that each epoch has the same samples of the stream is taken on trust: their contents differ, as "
        "random augmentation makes them"
    )
    return [], (remark,)


def find_stream_position_problems(
    ledger: Sequence[LedgerLine], began_at: DataPosition = DATA_START
) -> Iterable[LedgerProblem]:
    """Find the steps of a stream with a ``start`` or ``stop`` that is not the sum over all shards."""
    epoch, at = began_at.epoch, dict(began_at.shards)
    for line in ledger:
        samples = line.samples
        if samples.epoch != epoch:
            epoch, at = samples.epoch, {}
        at |= {shard: start for shard, (start, _) in samples.shards.items()}
        begun = sum(at.values())
        at |= {shard: stop for shard, (_, stop) in samples.shards.items()}
        ended = sum(at.values())
        if (samples.start, samples.stop) != (begun, ended):
            text = f"positions [{samples.start}, {samples.stop}), but its shards give [{begun}, {ended})"
            yield LedgerProblem("samples", text, line.step)


def count_epoch(epoch: int, times: bytearray, finished: bool) -> EpochCoverage:
    never, once = times.count(0), times.count(1)
    return EpochCoverage(
        epoch=epoch,
        samples=len(times),
        once=once,
        never=never,
        repeated=len(times) - never - once,
        finished=finished,
    )


def find_epoch_problems(epoch: EpochCoverage, dropped: int) -> Iterable[LedgerProblem]:
    """Find samples that an epoch has trained on too often or not at all; it may leave out ``dropped``."""
    if epoch.repeated:
        yield LedgerProblem(
            "samples", f"epoch {epoch.epoch}: {epoch.repeated} samples were trained on repeatedly"
        )
    if epoch.finished and epoch.never > dropped:
        left_out = f", {dropped} of them as drop_last asks" if dropped else ""
        text = f"epoch {epoch.epoch}: {epoch.never} samples were never trained on{left_out}"
        yield LedgerProblem("samples", text)
