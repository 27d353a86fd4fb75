"""Whether two runs are the same run: losses, samples, digests and final tensors, bit for bit."""

from collections.abc import Sequence

import msgspec

from elastane.api.records import Digest, LedgerLine
from elastane.api.spec import Pinned
from elastane.observability.run_files import Recorded
from elastane.observability.tensors import (
    ModelTensors,
    TensorDifference,
    compare_tensors,
    finished_model,
)

DECIDES = (
    "virtual_ranks",
    "global_batch",
    "microbatch",
    "dataset_length",
    "dataset_digest",
    "seed",
    "threads",
    "convergence",
    "parameters",
    "blocks",
    "layout_digest",
    "optimizer",
)
"""Pinned choices that decide the bits; ``copies`` and the number of steps do not."""

VERSIONS_THAT_DO_NOT_DECIDE = frozenset({"elastane", "python"})


class PinnedDifference(msgspec.Struct, frozen=True):
    """A pinned choice the two runs do not share; ``decides``: it decides the bits."""

    name: str
    first: str
    second: str
    decides: bool


class LedgerDifference(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first step that differs in one respect: ``loss``, ``samples``, ``parameters`` or ``optimizer``.

    ``block`` is the first differing block of a digest.
    """

    what: str
    step: int
    first: str
    second: str
    block: int | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What two runs have in common.

    Args:
        equal: comparable, of the same length, and every step, digest and tensor the same.
        comparable: they share every pinned choice that decides the bits.
        pinned: choices they do not share.
        steps: of the first and of the second run.
        same_steps: leading steps whose losses and samples are the same.
        digests: steps whose digests were held against each other.
        ledger: the first difference in each respect.
        tensors_compared: how many tensors of the finished models were held against each other.
        tensors: those that differ.
        remarks: what could not be compared, in words.
    """

    equal: bool
    comparable: bool
    pinned: tuple[PinnedDifference, ...]
    steps: tuple[int, int]
    same_steps: int
    digests: int
    ledger: tuple[LedgerDifference, ...]
    tensors_compared: int
    tensors: tuple[TensorDifference, ...]
    remarks: tuple[str, ...]


def compare(first: Recorded, second: Recorded) -> Comparison:
    """Hold two runs against each other; their final models are read from their directories."""
    pinned = pinned_differences(first.record.pinned, second.record.pinned)
    comparable = not any(difference.decides for difference in pinned)
    steps = (len(first.ledger), len(second.ledger))
    ledger = ledger_differences(first.ledger, second.ledger) if comparable else ()
    remarks = list(length_remarks(steps))
    tensors: tuple[TensorDifference, ...] = ()
    compared = 0
    models = [(run.run_dir.root, finished_model(run.run_dir)) for run in (first, second)]
    missing = [root for root, model in models if model is None]
    if not comparable or steps[0] != steps[1]:
        pass
    elif missing:
        remarks += [f"{root} holds no finished model, so final tensors were not compared" for root in missing]
    else:
        a, b = (ModelTensors(model) for _, model in models if model is not None)
        compared = len(a.entries.keys() | b.entries.keys())
        tensors = compare_tensors(a, b)
    return Comparison(
        # One run with a model and one without are not the same; two that both ended early may be.
        equal=comparable and steps[0] == steps[1] and not ledger and not tensors and len(missing) != 1,
        comparable=comparable,
        pinned=pinned,
        steps=steps,
        same_steps=same_prefix(first.ledger, second.ledger) if comparable else 0,
        digests=sum(
            a.digest is not None and b.digest is not None
            for a, b in zip(first.ledger, second.ledger, strict=False)
        ),
        ledger=ledger,
        tensors_compared=compared,
        tensors=tensors,
        remarks=tuple(remarks),
    )


def pinned_differences(first: Pinned | None, second: Pinned | None) -> tuple[PinnedDifference, ...]:
    """Every pinned choice that differs; a run that never pinned any differs in ``pinned`` itself."""
    if first is None or second is None:
        said = tuple("nothing yet" if pinned is None else "choices" for pinned in (first, second))
        return (PinnedDifference("pinned", said[0], said[1], decides=True),)
    a, b = flat(first), flat(second)
    return tuple(
        PinnedDifference(name, a.get(name, "none"), b.get(name, "none"), decides=decides(name))
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name)
    )


def flat(pinned: Pinned) -> dict[str, str]:
    """Pinned choices as readable pairs, with ``versions.torch`` and its like spelled out."""
    values = msgspec.structs.asdict(pinned)
    versions = values.pop("versions")
    return {name: str(value) for name, value in values.items()} | {
        f"versions.{name}": version for name, version in versions.items()
    }


def decides(name: str) -> bool:
    kind, _, version = name.partition(".")
    return name in DECIDES or (kind == "versions" and version not in VERSIONS_THAT_DO_NOT_DECIDE)


def same(a: LedgerLine, b: LedgerLine) -> bool:
    return a.step == b.step and a.loss_hex == b.loss_hex and a.samples == b.samples


def same_prefix(first: Sequence[LedgerLine], second: Sequence[LedgerLine]) -> int:
    count = 0
    for a, b in zip(first, second, strict=False):
        if not same(a, b):
            break
        count += 1
    return count


def ledger_differences(
    first: Sequence[LedgerLine], second: Sequence[LedgerLine]
) -> tuple[LedgerDifference, ...]:
    """The first difference in each respect over the steps both runs have."""
    found: dict[str, LedgerDifference] = {}
    for a, b in zip(first, second, strict=False):
        if a.step != b.step:
            found.setdefault("step", LedgerDifference("step", a.step, str(a.step), str(b.step)))
        if a.loss_hex != b.loss_hex:
            texts = (f"{a.loss} ({a.loss_hex})", f"{b.loss} ({b.loss_hex})")
            found.setdefault("loss", LedgerDifference("loss", a.step, *texts))
        if a.samples != b.samples:
            texts = (str(msgspec.structs.asdict(a.samples)), str(msgspec.structs.asdict(b.samples)))
            found.setdefault("samples", LedgerDifference("samples", a.step, *texts))
        if a.digest is not None and b.digest is not None:
            for difference in digest_differences(a.step, a.digest, b.digest):
                found.setdefault(difference.what, difference)
    return tuple(sorted(found.values(), key=lambda difference: difference.step))


def digest_differences(step: int, a: Digest, b: Digest) -> list[LedgerDifference]:
    parts = (
        ("parameters", a.parameters, b.parameters, a.parameter_blocks, b.parameter_blocks),
        ("optimizer", a.optimizer, b.optimizer, a.optimizer_blocks, b.optimizer_blocks),
    )
    return [
        LedgerDifference(what, step, whole_a, whole_b, first_difference(blocks_a, blocks_b))
        for what, whole_a, whole_b, blocks_a, blocks_b in parts
        if whole_a != whole_b or blocks_a != blocks_b
    ]


def first_difference(a: Sequence[str], b: Sequence[str]) -> int | None:
    """Place of the first unequal pair, or of the first element only one has; None where all agree."""
    for place, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return place
    return None if len(a) == len(b) else min(len(a), len(b))


def length_remarks(steps: tuple[int, int]) -> Sequence[str]:
    if steps[0] == steps[1]:
        return ()
    ended, other = ("first", "second") if steps[0] < steps[1] else ("second", "first")
    return (
        f"the {ended} run ended first, after step {min(steps)}; the {other} went on to step {max(steps)}",
    )
