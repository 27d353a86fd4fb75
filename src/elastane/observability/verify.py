"""Proof from a ledger alone that a run committed every step once and trained on every sample once."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from elastane.api.records import LedgerLine
from elastane.api.spec import Pinned


class SampleRules(msgspec.Struct, frozen=True):
    """The functions of `elastane.protocol` that coverage rests on.

    They come in as values: this floor may not import the protocol's, and a test may bring its own.

    Args:
        index: ``(position, length, seed, epoch)`` to the dataset index there.
        hash: of a dataset index, 64 bits.
        stream_hash: of ``(shard, position)``, 64 bits.
    """

    index: Callable[[int, int, int, int], int]
    hash: Callable[[int], int]
    stream_hash: Callable[[int, int], int]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One broken promise: ``steps``, ``generations``, ``shares``, ``samples`` or ``checksum``, and how."""

    kind: str
    text: str
    step: int | None = None


class EpochCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """How often the samples of one epoch were trained on.

    Args:
        epoch: from 0.
        samples: in the dataset; of a stream, those up to where its shards stand.
        once: samples seen exactly once.
        never: samples not seen; of an unfinished epoch that is no fault.
        repeated: samples seen twice or more often.
        finished: the epoch's last sample was dealt, all shards of a stream ended, or a later epoch has begun.
    """

    epoch: int
    samples: int
    once: int
    never: int
    repeated: int
    finished: bool


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger of one run proves.

    Args:
        ok: no problem was found.
        steps: committed.
        planned_steps: the run was to last, None if no worker ever loaded the script.
        generations: different ones in the ledger.
        samples: trained on, over all epochs.
        epochs: coverage of each.
        problems: in the order of the steps.
        not_finite: steps whose loss was infinite or not a number; training's business, not a broken promise.
    """

    ok: bool
    steps: int
    planned_steps: int | None
    generations: int
    samples: int
    epochs: tuple[EpochCoverage, ...]
    problems: tuple[Problem, ...]
    not_finite: tuple[int, ...]


def verify(
    pinned: Pinned | None, ledger: Sequence[LedgerLine], rules: SampleRules, *, finished: bool
) -> Verdict:
    """Judge one run by its ledger.

    Args:
        pinned: the run's choices; without them only a run with no steps can be judged.
        ledger: its lines in the order of the file.
        rules: which sample lies at which position.
        finished: the run says that it reached its last step.
    """
    problems = [*order_problems(ledger)]
    if finished and pinned is not None and pinned.steps and len(ledger) != pinned.steps:
        text = f"the run finished, but {len(ledger)} of its {pinned.steps} steps are in the ledger"
        problems.append(Problem("steps", text))
    epochs: tuple[EpochCoverage, ...] = ()
    if pinned is not None:
        problems += share_problems(ledger, pinned.virtual_ranks)
        # A dataset without a length is a stream.
        epochs, found = (coverage if pinned.dataset_length else stream_coverage)(ledger, pinned, rules)
        problems += found
    elif ledger:
        problems.append(Problem("steps", "run.json pins no choices, so shares and samples cannot be checked"))
    return Verdict(
        ok=not problems,
        steps=len(ledger),
        planned_steps=pinned.steps if pinned else None,
        generations=len({line.generation for line in ledger}),
        samples=sum(line.samples.count for line in ledger),
        epochs=epochs,
        problems=tuple(sorted(problems, key=lambda problem: problem.step or 0)),
        not_finite=tuple(line.step for line in ledger if not is_finite(line)),
    )


def is_finite(line: LedgerLine) -> bool:
    return line.loss is not None and math.isfinite(line.loss)


def order_problems(ledger: Iterable[LedgerLine]) -> Iterable[Problem]:
    """Steps count 1, 2, 3, ...; generations never go back."""
    generation, expected = 0, 1
    for line in ledger:
        if line.step != expected:
            yield Problem("steps", f"expected step {expected}, found step {line.step}", line.step)
        if line.generation < generation:
            text = f"generation {line.generation} after generation {generation}"
            yield Problem("generations", text, line.step)
        expected, generation = line.step + 1, max(generation, line.generation)


def share_problems(ledger: Iterable[LedgerLine], virtual_ranks: int) -> Iterable[Problem]:
    """Each step's virtual ranks are each computed by exactly one worker."""
    for line in ledger:
        times = [0] * virtual_ranks
        for worker, spans in line.workers.items():
            for start, stop in spans:
                if not 0 <= start < stop <= virtual_ranks:
                    text = f"worker {worker} has [{start}, {stop}), outside 0..{virtual_ranks}"
                    yield Problem("shares", text, line.step)
                    continue
                for rank in range(start, stop):
                    times[rank] += 1
        wrong = {rank: count for rank, count in enumerate(times) if count != 1}
        if wrong:
            text = ", ".join(f"{rank} computed {count} times" for rank, count in list(wrong.items())[:4])
            more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""  # noqa: PLR2004 - four make a line
            yield Problem("shares", f"virtual rank {text}{more}", line.step)


def coverage(
    ledger: Sequence[LedgerLine], pinned: Pinned, rules: SampleRules
) -> tuple[tuple[EpochCoverage, ...], list[Problem]]:
    """How often each sample was seen, by the indices the positions stand for, and what is wrong about it.

    Three things are held against each other: the positions a step claims, the count it claims, and the
    checksum its workers summed over the indices they really loaded.
    """
    length = pinned.dataset_length
    problems: list[Problem] = []
    seen: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(length))
    ended: set[int] = set()
    for line in ledger:
        samples = line.samples
        if not 0 <= samples.start < samples.stop <= length:
            text = f"positions [{samples.start}, {samples.stop}) are outside an epoch of {length} samples"
            problems.append(Problem("samples", text, line.step))
            continue
        if samples.count != samples.stop - samples.start:
            text = (
                f"{samples.count} samples were loaded for the {samples.stop - samples.start} "
                f"positions [{samples.start}, {samples.stop})"
            )
            problems.append(Problem("samples", text, line.step))
        total = 0
        times = seen[samples.epoch]
        for position in range(samples.start, samples.stop):
            index = rules.index(position, length, pinned.seed, samples.epoch)
            times[index] = min(times[index] + 1, 255)
            total += rules.hash(index)
        if (expected := f"{total % 2**64:016x}") != samples.checksum:
            text = f"the loaded samples sum to {samples.checksum}, those dealt to {expected}"
            problems.append(Problem("checksum", text, line.step))
        if samples.stop == length:
            ended.add(samples.epoch)
    newest = max(seen, default=-1)
    if newest >= 0 and sorted(seen) != [*range(len(seen))]:
        text = f"epochs {', '.join(map(str, sorted(seen)))} were trained on: some before the last are missing"
        problems.append(Problem("samples", text))
    epochs = tuple(counted(e, seen[e], e < newest or e in ended) for e in sorted(seen))
    return epochs, problems + [problem for epoch in epochs for problem in epoch_problems(epoch)]


def stream_coverage(
    ledger: Sequence[LedgerLine], pinned: Pinned, rules: SampleRules
) -> tuple[tuple[EpochCoverage, ...], list[Problem]]:
    """How often each sample of a stream was drawn: each shard must go on where it stood, without a gap."""
    problems: list[Problem] = []
    stands: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    never: Counter[int] = Counter()
    repeated: Counter[int] = Counter()
    ended: set[int] = set()
    for line in ledger:
        samples, total, count = line.samples, 0, 0
        at = stands[samples.epoch]
        if samples.epoch in ended or samples.epoch < max(stands):
            problems.append(Problem("samples", f"epoch {samples.epoch} goes on after its end", line.step))
        for shard, (start, stop) in sorted(samples.shards.items()):
            if not (0 <= shard < pinned.virtual_ranks and 0 <= start < stop):
                text = f"shard {shard}, positions [{start}, {stop}): there are no such samples"
                problems.append(Problem("samples", text, line.step))
                continue
            if start != at[shard]:
                text = f"shard {shard} stood at {at[shard]} and was drawn from {start} on"
                problems.append(Problem("samples", text, line.step))
            never[samples.epoch] += max(0, start - at[shard])
            repeated[samples.epoch] += max(0, min(stop, at[shard]) - start)
            at[shard] = max(at[shard], stop)
            count += stop - start
            total += sum(rules.stream_hash(shard, position) for position in range(start, stop))
        if count != samples.count:
            text = f"{samples.count} samples were loaded for the {count} that the shards moved on by"
            problems.append(Problem("samples", text, line.step))
        if (expected := f"{total % 2**64:016x}") != samples.checksum:
            text = f"the loaded samples sum to {samples.checksum}, those dealt to {expected}"
            problems.append(Problem("checksum", text, line.step))
        if samples.ended:
            ended.add(samples.epoch)
    newest = max(stands, default=-1)
    if unfinished := [epoch for epoch in range(newest) if epoch not in ended]:
        text = f"epochs {', '.join(map(str, unfinished))} did not end before the next began"
        problems.append(Problem("samples", text))
    epochs = []
    for epoch, at in sorted(stands.items()):
        length = sum(at.values())
        once = length - never[epoch] - repeated[epoch]
        epochs.append(
            EpochCoverage(
                epoch=epoch,
                samples=length,
                once=once,
                never=never[epoch],
                repeated=repeated[epoch],
                finished=epoch in ended or epoch < newest,
            )
        )
    return tuple(epochs), problems


def counted(epoch: int, times: bytearray, finished: bool) -> EpochCoverage:
    never, once = times.count(0), times.count(1)
    return EpochCoverage(
        epoch=epoch,
        samples=len(times),
        once=once,
        never=never,
        repeated=len(times) - never - once,
        finished=finished,
    )


def epoch_problems(epoch: EpochCoverage) -> Iterable[Problem]:
    if epoch.repeated:
        yield Problem("samples", f"epoch {epoch.epoch}: {epoch.repeated} samples were trained on repeatedly")
    if epoch.finished and epoch.never:
        yield Problem("samples", f"epoch {epoch.epoch}: {epoch.never} samples were never trained on")
