"""``elastane verify``: prove that a run is complete, two runs are equal, or a checkpoint can be restored."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from elastane.cli.command import AsJson, RunName, open_console, print_json
from elastane.cli.options import argument, flag, option
from elastane.cli.run_lookup import find_trained_run
from elastane.cli.runs.rehearsal import run_rehearsal
from elastane.common.errors import BadInput
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.compare import Comparison, compare_runs
from elastane.run.observability.coverage import EpochCoverage
from elastane.run.observability.quantities import describe_agreement
from elastane.run.observability.run_files import read_run
from elastane.run.observability.verify import Verdict

SHOWN = 20
"""The most problems, tensors and epochs that are listed; --json lists all."""

REHEARSAL = "Rehearse a restore"

ONE_LINE = 60
"""The most characters of two values that are shown side by side."""


Other = Annotated[
    str | None,
    argument(
        "OTHER", "A second run to compare with; with --restore, a checkpoint of RUN by its name or step."
    ),
]
Restore = Annotated[
    bool,
    flag("Rehearse a restore from a checkpoint, without touching the run.", "--restore", panel=REHEARSAL),
]
Workers = Annotated[
    int | None,
    option(
        "N",
        "Number of workers that restore. Default: the number that the run starts with.",
        min=1,
        panel=REHEARSAL,
    ),
]


def verify(
    run: RunName,
    other: Other = None,
    *,
    restore: Restore = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Prove that RUN lost and repeated nothing, or that two runs are equal.

    One run: the ledger proves that each step was made once and in order, that
    each virtual rank was computed once, and that each sample of an epoch was
    trained on once. The command also checks that the lines of the ledger are
    consistent, no digest is missing, and the files of the model are unchanged.

    Two runs: the command compares the pinned settings, then losses, samples and
    digests step by step, then the final tensors, bit for bit. An inconsistency
    within one of the runs is a problem, too.

    With --restore: the command verifies a checkpoint (default: the newest), then
    reads it into memory as N workers of a resumed run would. If the ledger has a
    digest of that step, the restored state must have the same digest.

      $ elastane verify demo
      $ elastane verify demo other
      $ elastane verify --restore demo 1500 --workers 4

    The exit code is 0 if the proof, the comparison or the restore succeeds, 1 if
    it fails, and 2 if a file cannot be read.
    """
    if restore:
        run_rehearsal(find_trained_run(run, "checkpoints"), other, workers, as_json=as_json)
        return
    if workers is not None:
        raise BadInput("--workers needs --restore", do="use it with --restore, for the workers that restore")
    first = read_run(find_trained_run(run, "ledger to verify"))
    console = open_console(as_json=as_json)
    if other is None:
        verdict = verify_run(first)
        print_verdict(verdict, console)
        good, found = verdict.ok, msgspec.to_builtins(verdict)
    else:
        comparison = compare_runs(first, read_run(find_trained_run(other, "ledger to compare")))
        print_comparison(comparison, console)
        good, found = comparison.equal, msgspec.to_builtins(comparison)
    if as_json:
        print_json(found)
    if not good:
        raise typer.Exit(1)


def print_verdict(verdict: Verdict, console: Console) -> None:
    """Print the proof of one run: steps, epochs, problems, remarks and the conclusion."""

    def show(words: str) -> None:
        console.print(words, markup=False)

    of = f" of {verdict.planned_steps}" if verdict.planned_steps else ""
    generations = f"{verdict.generations} generation{'s' * (verdict.generations != 1)}"
    show(f"{verdict.steps}{of} steps in {generations}, {verdict.samples:,} samples")
    # If there are many epochs, consecutive ones with the same counts share a line.
    many = len(verdict.epochs) > SHOWN
    groups = groupby(
        verdict.epochs, lambda epoch: msgspec.structs.replace(epoch, epoch=0 if many else epoch.epoch)
    )
    for _, alike in groups:
        show(f"  {format_epochs([*alike])}")
    if verdict.not_finite:
        show(f"  loss not finite at steps {join_first([*map(str, verdict.not_finite)])}")
    for problem in verdict.problems[:SHOWN]:
        where = "" if problem.step is None else f"step {problem.step}: "
        show(f"  {problem.kind}: {where}{problem.text}")
    if len(verdict.problems) > SHOWN:
        show(f"  and {len(verdict.problems) - SHOWN} more")
    if verdict.agreed:
        show(f"  {describe_agreement(verdict.agreed)}")
    if verdict.files:
        show(f"  {verdict.files} file{'s' * (verdict.files != 1)} of the finished model unchanged")
    for remark in verdict.remarks:
        show(f"  {remark}")
    by = " from the ledger" if verdict.remarks else ""
    show(f"proved{by}: nothing is missing, lost or repeated" if verdict.ok else "NOT proved")


def format_epochs(alike: Sequence[EpochCoverage]) -> str:
    """Return the text for consecutive epochs with the same counts."""
    first, last = alike[0], alike[-1]
    which = f"epoch {first.epoch}" if first is last else f"epochs {first.epoch} to {last.epoch}, each"
    state = "" if first.finished else " (unfinished)"
    counts = f"{first.once:,} samples once, {first.never:,} never, {first.repeated:,} repeatedly"
    return f"{which}{state}: {counts}"


def print_comparison(found: Comparison, console: Console) -> None:
    """Print the differences between two runs, pinned settings first, and the conclusion."""

    def show(words: str) -> None:
        console.print(words, markup=False)

    for choice in found.pinned:
        weight = "must be equal" if choice.decides else "may differ"
        values = f"{choice.first} against {choice.second}"
        if len(values) <= ONE_LINE:
            show(f"  {choice.name} ({weight}): {values}")
            continue
        show(f"  {choice.name} ({weight}):")
        show(f"    {choice.first}")
        show(f"    {choice.second}")
    if not found.comparable:
        show("NOT comparable: pinned settings that determine the bits differ")
        return
    show(f"{found.same_steps} of {max(found.steps)} steps have the same loss and samples, bit for bit")
    for remark in found.remarks:
        show(f"  {remark}")
    for difference in found.ledger:
        block = "" if difference.block is None else f", from block {difference.block} on"
        show(f"  {difference.what} differs first at step {difference.step}{block}:")
        show(f"    {difference.first}")
        show(f"    {difference.second}")
    print_tensors(found, show)
    for problem in found.problems[:SHOWN]:
        where = "" if problem.step is None else f"step {problem.step}: "
        show(f"  {problem.run}: {problem.kind}: {where}{problem.text}")
    if len(found.problems) > SHOWN:
        show(f"  and {len(found.problems) - SHOWN} more")
    show(format_result(found))


def print_tensors(found: Comparison, show: Callable[[str], None]) -> None:
    show(f"{found.digests} digests compared; {found.tensors_compared} tensors, {len(found.tensors)} differ")
    for tensor in found.tensors[:SHOWN]:
        far = "" if tensor.max_abs is None else f", by at most {tensor.max_abs:.3g}"
        many = "" if tensor.elements is None else f" of {tensor.elements} elements"
        show(f"  {tensor.name}: {tensor.why}{many}{far}")
    if len(found.tensors) > SHOWN:
        show(f"  and {len(found.tensors) - SHOWN} more")


def format_result(found: Comparison) -> str:
    """Return the result of a comparison; a damaged run is never proved equal, even if nothing differs."""
    if found.equal:
        return "equal, bit for bit"
    differ = found.ledger or found.tensors or found.steps[0] != found.steps[1]
    return "NOT proved equal" if found.problems and not differ else "DIFFERENT"


def join_first(words: list[str]) -> str:
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
