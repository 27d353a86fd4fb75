"""Proof from a ledger alone that a run committed every step once and trained on every sample once."""

import math
from collections.abc import Iterable, Sequence

import msgspec

from elastane.run.nouns.records import LedgerLine
from elastane.run.nouns.sites import list_site_ranks
from elastane.run.nouns.spec import DATA_START, DataPosition, PastDivision, Pinned, find_pinned_at
from elastane.run.observability.bound_data import count_absences
from elastane.run.observability.coverage import (
    EpochCoverage,
    LedgerProblem,
    SampleRules,
    check_coverage,
    check_stream_coverage,
    compare_stream_epochs,
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of verifying the ledger of one run.

    Args:
        ok: no problem was found.
        planned_steps: planned steps of this run; None if no worker has loaded the script.
        generations: number of different generations in the ledger.
        samples: samples trained on, in all epochs together.
        problems: all problems, in the order of the steps.
        not_finite: steps with a loss that was infinite or NaN; this breaks no promise.
        agreed: number of microbatches that a second worker computed too, in spot checks, with the same bits.
        files: number of files of the finished model that are, to the byte, as the run wrote them.
        remarks: parts that could not be checked or are taken on trust, in words.
    """

    ok: bool
    steps: int
    planned_steps: int | None
    generations: int
    samples: int
    epochs: tuple[EpochCoverage, ...]
    problems: tuple[LedgerProblem, ...]
    not_finite: tuple[int, ...]
    agreed: int = 0
    files: int = 0
    remarks: tuple[str, ...] = ()


def verify_ledger(
    pinned: Pinned | None,
    ledger: Sequence[LedgerLine],
    rules: SampleRules,
    *,
    finished: bool,
    ended_at: int | None = None,
    began_at: DataPosition = DATA_START,
    divisions: Sequence[PastDivision] = (),
) -> Verdict:
    """Verify one run by its ledger.

    Args:
        pinned: the pinned choices; without them only a run without steps can be verified.
        ledger: its lines in the order of the file.
        rules: the functions that map positions to samples.
        finished: the run has recorded that it reached its last step.
        ended_at: the step after which, by the events, the script ended the run; None: it did not.
        began_at: how far another run had come, with the state of which this one began.
        divisions: of the model in earlier attempts.
    """
    problems = [*find_order_problems(ledger, began_at.step), *find_line_problems(ledger, pinned, divisions)]
    last = pinned.steps if pinned is not None and ended_at is None else ended_at
    if finished and last and len(ledger) != last - began_at.step:
        text = f"the run finished, but {len(ledger)} of its {last - began_at.step} steps are in the ledger"
        problems.append(LedgerProblem("steps", text))
    epochs: tuple[EpochCoverage, ...] = ()
    remarks: tuple[str, ...] = ()
    if pinned is not None:
        problems += find_share_problems(ledger, pinned.virtual_ranks, pinned.rank_sites)
        # A dataset without a length is a stream.
        epochs, found = (check_coverage if pinned.dataset_length else check_stream_coverage)(
            ledger, pinned, rules, began_at
        )
        problems += found
        if pinned.rank_sites:
            # Each site reads its data over and over, so that no epoch ends for all of them.
            remarks = count_absences(ledger)
        elif not pinned.dataset_length:
            found, remarks = compare_stream_epochs(ledger, began_at)
            problems += found
    elif ledger:
        problems.append(
            LedgerProblem("steps", "run.json has no pinned choices, so shares and samples cannot be checked")
        )
    return Verdict(
        ok=not problems,
        steps=len(ledger),
        planned_steps=max(0, pinned.steps - began_at.step) if pinned else None,
        generations=len({line.generation for line in ledger}),
        samples=sum(line.samples.count for line in ledger),
        epochs=epochs,
        problems=sort_problems(problems),
        not_finite=tuple(line.step for line in ledger if not is_finite_line(line)),
        agreed=sum(line.agreed for line in ledger),
        remarks=remarks,
    )


def sort_problems(problems: Iterable[LedgerProblem]) -> tuple[LedgerProblem, ...]:
    """Sort problems by step; those of the whole run come first."""
    return tuple(sorted(problems, key=lambda problem: problem.step or 0))


def is_finite_line(line: LedgerLine) -> bool:
    return line.loss is not None and math.isfinite(line.loss)


def find_order_problems(ledger: Iterable[LedgerLine], began_at: int = 0) -> Iterable[LedgerProblem]:
    """Find the lines where steps do not count 1, 2, 3, ... from ``began_at`` on, or generations go back."""
    generation, expected = 0, began_at + 1
    for line in ledger:
        if line.step != expected:
            yield LedgerProblem("steps", f"expected step {expected}, found step {line.step}", line.step)
        if line.generation < generation:
            text = f"generation {line.generation} after generation {generation}"
            yield LedgerProblem("generations", text, line.step)
        expected, generation = line.step + 1, max(generation, line.generation)


def find_line_problems(
    ledger: Iterable[LedgerLine], pinned: Pinned | None, divisions: Sequence[PastDivision] = ()
) -> Iterable[LedgerProblem]:
    """Find the fields of lines that contradict each other or the number of blocks at their step."""
    for line in ledger:
        if (text := find_loss_problem(line)) is not None:
            yield LedgerProblem("loss", text, line.step)
        if line.skipped and line.grad_norm is not None:
            text = f"the step was skipped, but has the gradient norm {line.grad_norm}"
            yield LedgerProblem("norm", text, line.step)
        elif line.grad_norm is not None and line.grad_norm < 0:
            yield LedgerProblem("norm", f"the gradient norm {line.grad_norm} is negative", line.step)
        if line.digest is None:
            continue
        sizes = {
            "parameters": len(line.digest.parameter_blocks),
            "optimizer": len(line.digest.optimizer_blocks),
        }
        at_step = None if pinned is None else find_pinned_at(pinned, divisions, line.step)
        blocks = sizes["parameters"] if at_step is None else at_step.blocks
        for what, size in sizes.items():
            if size != blocks:
                text = f"the digest has {size} blocks of {what}; the state has {blocks}"
                yield LedgerProblem("digest", text, line.step)


def find_loss_problem(line: LedgerLine) -> str | None:
    """Describe how ``loss`` and ``loss_hex`` differ; None: they are the same number, bit for bit."""
    try:
        exact = float.fromhex(line.loss_hex)
    except (ValueError, OverflowError):
        return f"loss_hex {line.loss_hex!r} is not a number"
    # JSON cannot represent a loss that is not finite.
    written = line.loss.hex() if line.loss is not None else "none"
    expected = exact.hex() if math.isfinite(exact) else "none"
    if written == expected:
        return None
    return f"loss {line.loss} is {written}, loss_hex {line.loss_hex}"


def find_share_problems(
    ledger: Iterable[LedgerLine], virtual_ranks: int, rank_sites: Sequence[str] = ()
) -> Iterable[LedgerProblem]:
    """Find the steps in which some virtual rank was not computed by exactly one worker.

    Args:
        rank_sites: the site of each virtual rank; those of an absent one are computed by no worker.
    """
    for line in ledger:
        left_out = list_site_ranks(rank_sites, line.absent)
        times = [0] * virtual_ranks
        for worker, spans in line.workers.items():
            for start, stop in spans:
                if not 0 <= start < stop <= virtual_ranks:
                    text = f"worker {worker} has [{start}, {stop}), outside 0..{virtual_ranks}"
                    yield LedgerProblem("shares", text, line.step)
                    continue
                for rank in range(start, stop):
                    times[rank] += 1
        wrong = {rank: count for rank, count in enumerate(times) if count != (rank not in left_out)}
        if wrong:
            text = ", ".join(f"{rank} computed {count} times" for rank, count in list(wrong.items())[:4])
            more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""  # noqa: PLR2004 - four make a line
            yield LedgerProblem("shares", f"virtual rank {text}{more}", line.step)
