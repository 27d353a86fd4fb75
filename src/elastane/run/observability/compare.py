"""Comparison of two runs, bit for bit: losses, samples, digests and final tensors."""

from collections.abc import Iterable, Sequence

import msgspec

from elastane.run.nouns.records import Digest, LedgerLine
from elastane.run.nouns.spec import Pinned, find_pinned_at
from elastane.run.observability.digests import (
    add_last_digest,
    find_digest_problems,
    is_digest_expected,
    is_end_of_attempt,
)
from elastane.run.observability.model_files import check_model
from elastane.run.observability.run_files import Recorded
from elastane.run.observability.tensors import (
    ModelTensors,
    TensorDifference,
    compare_tensors,
    find_finished_model,
)
from elastane.run.observability.verify import find_line_problems, sort_problems

DECIDES = (
    "virtual_ranks",
    "global_batch",
    "microbatch",
    "dataset_length",
    "dropped",
    "dataset_digest",
    "seed",
    "threads",
    "convergence",
    "numerics",
    "parameters",
    "layout_digest",
    "optimizer",
    "sharing",
    "rank_sites",
)
"""The pinned choices that decide the bits; ``copies``, blocks and the number of steps do not."""

VERSIONS_THAT_DO_NOT_DECIDE = frozenset({"elastane", "python"})


class PinnedDifference(msgspec.Struct, frozen=True):
    """A pinned choice in which two runs differ; ``decides`` is True if it decides the bits."""

    name: str
    first: str
    second: str
    decides: bool


class LedgerDifference(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first step that differs in one respect.

    ``what`` is ``loss``, ``norm`` (of the gradient), ``skipped``, ``samples``, ``logged``, ``artifacts``,
    ``digest`` (only one run has one), ``parameters`` or ``optimizer``. ``block`` is the first differing block
    of a digest.
    """

    what: str
    step: int
    first: str
    second: str
    block: int | None = None


class RunProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A contradiction within one of the two runs.

    ``run`` is its directory; the other fields are those of an
    `elastane.run.observability.coverage.LedgerProblem`.
    """

    run: str
    kind: str
    text: str
    step: int | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing two runs.

    Args:
        equal: the runs are comparable and of the same length, every step, digest and tensor is the same, and
            there is no problem.
        comparable: they share every pinned choice that decides the bits.
        pinned: choices in which they differ.
        steps: of the first and of the second run.
        same_steps: leading steps with the same losses and samples.
        digests: number of steps with compared digests.
        ledger: the first difference in each respect.
        tensors_compared: number of compared tensors of the finished models.
        tensors: the tensors that differ.
        remarks: parts that could not be compared, in words.
        problems: of the first, then of the second run: lines that contradict themselves, missing digests,
            files of the finished model that have changed.
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
    problems: tuple[RunProblem, ...] = ()


def compare_runs(first: Recorded, second: Recorded) -> Comparison:
    """Compare two runs, from the later of their beginnings on; their final models are read, too."""
    begun = max(first.record.began_at.step, second.record.began_at.step)
    first, second = (cut_before(run, begun) for run in (first, second))
    pinned = compare_pinned(first.record.pinned, second.record.pinned)
    comparable = not any(difference.decides for difference in pinned)
    steps = (len(first.ledger), len(second.ledger))
    remarks = list(describe_lengths(steps, begun))
    complete = (add_last_digest(first), add_last_digest(second))
    divided = find_divided_steps(first, second) if comparable else frozenset()
    if divided:
        remarks.append(
            f"digests of {len(divided)} steps were not compared: they describe the parts of the processes of "
            "a worker, and the runs divided the model differently; losses, samples and final tensors do not "
            "depend on that"
        )
        complete = (drop_digests(complete[0], divided), drop_digests(complete[1], divided))
    one_sided = find_one_sided_digests(*complete) if comparable else ()
    ledger = compare_ledgers(complete[0].ledger, complete[1].ledger, one_sided) if comparable else ()
    named = frozenset(difference.step for difference in one_sided)
    problems = (*list_run_problems(first, named), *list_run_problems(second, named))
    tensors: tuple[TensorDifference, ...] = ()
    compared = 0
    models = [(run.run_dir.root, find_finished_model(run.run_dir)) for run in (first, second)]
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
        # A run with a model and one without are not equal; two runs that both ended early may be, by digests.
        equal=comparable
        and steps[0] == steps[1]
        and not (ledger or tensors or problems or len(missing) == 1 or (missing and divided)),
        comparable=comparable,
        pinned=pinned,
        steps=steps,
        same_steps=count_same_lines(first.ledger, second.ledger) if comparable else 0,
        digests=sum(
            a.digest is not None and b.digest is not None
            for a, b in zip(complete[0].ledger, complete[1].ledger, strict=False)
        ),
        ledger=ledger,
        tensors_compared=compared,
        tensors=tensors,
        remarks=tuple(remarks),
        problems=problems,
    )


def list_run_problems(run: Recorded, one_sided: frozenset[int]) -> tuple[RunProblem, ...]:
    """Find the contradictions within a run, except those of coverage.

    Args:
        run: one of the two.
        one_sided: steps with a missing digest that counts as a difference.

    Raises:
        BadInput: a file of the run's finished model cannot be read.
    """
    found = (
        *find_line_problems(run.ledger, run.record.pinned, run.record.divisions),
        *(problem for problem in find_digest_problems(run) if problem.step not in one_sided),
        *check_model(run).problems,
    )
    root = str(run.run_dir.root)
    return tuple(
        RunProblem(root, problem.kind, problem.text, problem.step) for problem in sort_problems(found)
    )


def find_one_sided_digests(first: Recorded, second: Recorded) -> tuple[LedgerDifference, ...]:
    """Find the steps at which one run has a digest and the other should have one but does not.

    Runs may differ in the number of steps between two digests. The end of an attempt also adds a digest,
    which a run without that end does not have.
    """
    same_every = first.record.spec.digest_every == second.record.spec.digest_every
    found = []
    for a, b in zip(first.ledger, second.ledger, strict=False):
        if a.step != b.step or (a.digest is None) == (b.digest is None):
            continue
        having, lacking = (first, second) if b.digest is None else (second, first)
        if is_digest_expected(lacking, a.step) or (same_every and not is_end_of_attempt(having, a.step)):
            texts = tuple("none" if line.digest is None else line.digest.parameters for line in (a, b))
            found.append(LedgerDifference("digest", a.step, texts[0], texts[1]))
    return tuple(found)


def compare_pinned(first: Pinned | None, second: Pinned | None) -> tuple[PinnedDifference, ...]:
    """Return every pinned choice that differs; a run without pinned choices differs in ``pinned`` itself."""
    if first is None or second is None:
        texts = tuple("nothing yet" if pinned is None else "choices" for pinned in (first, second))
        return (PinnedDifference("pinned", texts[0], texts[1], decides=True),)
    a, b = flatten_pinned(first), flatten_pinned(second)
    return tuple(
        PinnedDifference(name, a.get(name, "none"), b.get(name, "none"), decides=is_decisive(name))
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name)
    )


def find_divided_steps(first: Recorded, second: Recorded) -> frozenset[int]:
    """Return the steps of which the digests of two comparable runs describe other parts of the state."""

    def find_parts(run: Recorded, step: int) -> tuple[str | None, int]:
        assert run.record.pinned is not None, "comparable runs have pinned choices"
        pinned = find_pinned_at(run.record.pinned, run.record.divisions, step)
        return pinned.division, pinned.blocks

    steps = (line.step for line in first.ledger)
    return frozenset(step for step in steps if find_parts(first, step) != find_parts(second, step))


def drop_digests(run: Recorded, steps: frozenset[int]) -> Recorded:
    """Return a run without the digests of some steps."""
    ledger = tuple(
        msgspec.structs.replace(line, digest=None) if line.step in steps else line for line in run.ledger
    )
    return msgspec.structs.replace(run, ledger=ledger)


def flatten_pinned(pinned: Pinned) -> dict[str, str]:
    """Return pinned choices as readable pairs, with versions under names such as ``versions.torch``."""
    values = msgspec.structs.asdict(pinned)
    versions = values.pop("versions")
    # It differs whenever another fact does, such as the seed.
    del values["probe"]
    return {name: str(value) for name, value in values.items()} | {
        f"versions.{name}": version for name, version in versions.items()
    }


def is_decisive(name: str) -> bool:
    kind, _, version = name.partition(".")
    return name in DECIDES or (kind == "versions" and version not in VERSIONS_THAT_DO_NOT_DECIDE)


def is_same_line(a: LedgerLine, b: LedgerLine) -> bool:
    return (a.step, a.loss, a.loss_hex, a.samples) == (b.step, b.loss, b.loss_hex, b.samples)


def count_same_lines(first: Sequence[LedgerLine], second: Sequence[LedgerLine]) -> int:
    count = 0
    for a, b in zip(first, second, strict=False):
        if not is_same_line(a, b):
            break
        count += 1
    return count


def compare_ledgers(
    first: Sequence[LedgerLine], second: Sequence[LedgerLine], one_sided: Sequence[LedgerDifference] = ()
) -> tuple[LedgerDifference, ...]:
    """Return the first difference in each respect over the steps that both runs have.

    Args:
        one_sided: digests that only one of the runs has, in the order of their steps.
    """
    found: dict[str, LedgerDifference] = {}
    if one_sided:
        found["digest"] = one_sided[0]
    # The script chooses whether norms are measured; that does not affect the bits.
    measured = all(any(line.grad_norm is not None for line in ledger) for ledger in (first, second))
    names = list_recorded_names(first) & list_recorded_names(second)
    for a, b in zip(first, second, strict=False):
        for difference in (
            *compare_recorded_values(a, b, names),
            *compare_step_digests(a.step, a.digest, b.digest),
        ):
            found.setdefault(difference.what, difference)
        if a.step != b.step:
            found.setdefault("step", LedgerDifference("step", a.step, str(a.step), str(b.step)))
        if (a.loss, a.loss_hex) != (b.loss, b.loss_hex):
            texts = (f"{a.loss} ({a.loss_hex})", f"{b.loss} ({b.loss_hex})")
            found.setdefault("loss", LedgerDifference("loss", a.step, *texts))
        if measured and a.grad_norm != b.grad_norm:
            texts = (str(a.grad_norm), str(b.grad_norm))
            found.setdefault("norm", LedgerDifference("norm", a.step, *texts))
        if a.skipped != b.skipped:
            texts = (str(a.skipped), str(b.skipped))
            found.setdefault("skipped", LedgerDifference("skipped", a.step, *texts))
        if a.samples != b.samples:
            texts = (str(msgspec.structs.asdict(a.samples)), str(msgspec.structs.asdict(b.samples)))
            found.setdefault("samples", LedgerDifference("samples", a.step, *texts))
    return tuple(sorted(found.values(), key=lambda difference: difference.step))


def list_recorded_names(ledger: Iterable[LedgerLine]) -> frozenset[str]:
    """Return the names that a script has logged; logging does not affect the bits."""
    return frozenset(name for line in ledger for name in line.logged)


def compare_recorded_values(
    a: LedgerLine, b: LedgerLine, names: frozenset[str]
) -> Iterable[LedgerDifference]:
    """Find the logged values and the artifacts of one step that differ.

    Args:
        names: the names that both runs have logged anywhere.
    """
    for name in sorted(names & (a.logged.keys() | b.logged.keys())):
        if a.logged.get(name) != b.logged.get(name):
            texts = (f"{name} {a.logged.get(name)}", f"{name} {b.logged.get(name)}")
            yield LedgerDifference("logged", a.step, *texts)
    for name in sorted(a.artifacts.keys() & b.artifacts.keys()):
        if a.artifacts[name] != b.artifacts[name]:
            texts = (f"{name} {a.artifacts[name].checksum}", f"{name} {b.artifacts[name].checksum}")
            yield LedgerDifference("artifacts", a.step, *texts)


def compare_step_digests(step: int, a: Digest | None, b: Digest | None) -> list[LedgerDifference]:
    if a is None or b is None:
        return []
    parts = (
        ("parameters", a.parameters, b.parameters, a.parameter_blocks, b.parameter_blocks),
        ("optimizer", a.optimizer, b.optimizer, a.optimizer_blocks, b.optimizer_blocks),
    )
    return [
        LedgerDifference(what, step, whole_a, whole_b, find_first_difference(blocks_a, blocks_b))
        for what, whole_a, whole_b, blocks_a, blocks_b in parts
        # An event has no blocks; another check ensures that a line has all of them.
        if whole_a != whole_b or (blocks_a and blocks_b and blocks_a != blocks_b)
    ]


def find_first_difference(a: Sequence[str], b: Sequence[str]) -> int | None:
    """Return the index of the first unequal pair, or of the first extra element; None: all are equal."""
    for place, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return place
    return None if len(a) == len(b) else min(len(a), len(b))


def cut_before(run: Recorded, begun: int) -> Recorded:
    """Return a run with only the ledger lines after a step."""
    ledger = tuple(line for line in run.ledger if line.step > begun) if begun else run.ledger
    return msgspec.structs.replace(run, ledger=ledger)


def describe_lengths(steps: tuple[int, int], begun: int) -> Iterable[str]:
    """Describe which steps are not compared.

    Args:
        steps: how many each run has made since both have begun.
        begun: the step after which the later one began.
    """
    if begun:
        yield f"compared from step {begun + 1} on: one of the runs began there, from the state of another"
    if steps[0] != steps[1]:
        ended, other = ("first", "second") if steps[0] < steps[1] else ("second", "first")
        yield (
            f"the {ended} run ended first, after step {begun + min(steps)}; the {other} continued to step "
            f"{begun + max(steps)}"
        )
