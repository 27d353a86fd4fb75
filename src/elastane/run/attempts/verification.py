"""Verification of a run from its files, with the rules by which the runtime assigns samples."""

from collections.abc import Iterable

import msgspec

from elastane.run.nouns.records import ENDS_WITH_MODEL, SCRIPT
from elastane.run.observability.coverage import LedgerProblem, SampleRules, find_stream_position_problems
from elastane.run.observability.digests import find_digest_problems
from elastane.run.observability.facts import find_outcome, find_outcome_event
from elastane.run.observability.model_files import ModelFiles, check_model, is_plain_name, measure_file
from elastane.run.observability.run_files import Recorded
from elastane.run.observability.verify import Verdict, sort_problems, verify_ledger
from elastane.run.protocol.sampling import find_sample_index, hash_sample, hash_stream_sample


def verify_run(run: Recorded) -> Verdict:
    """Verify that every step, virtual rank and sample occurs once, and that the model is unchanged.

    Raises:
        BadInput: a file of the finished model cannot be read.
    """
    verdict, model, artifacts = verify_samples(run), check_model(run), check_artifacts(run)
    problems = sort_problems((*verdict.problems, *model.problems, *artifacts.problems))
    remarks = (*verdict.remarks, *model.remarks, *artifacts.remarks)
    return msgspec.structs.replace(
        verdict, ok=not problems, problems=problems, files=model.intact, remarks=remarks
    )


def verify_samples(run: Recorded) -> Verdict:
    """Verify that every step, virtual rank and sample occurs once, without reading the model."""
    outcome, _ = find_outcome(run.events, live=run.live)
    rules = SampleRules(find_sample_index, hash_sample, hash_stream_sample)
    ended_at = next((e.step for e in run.events if e.kind == "run.finished" and e.who == SCRIPT), None)
    verdict = verify_ledger(
        run.record.pinned, run.ledger, rules, finished=outcome == "finished", ended_at=ended_at
    )
    problems = sort_problems((*verdict.problems, *find_run_problems(run)))
    return msgspec.structs.replace(verdict, ok=not problems, problems=problems)


# -- verification of the files that a script wrote through ``run.artifact`` ------------------------------


def check_artifacts(run: Recorded) -> ModelFiles:
    """Compare each artifact with the checksum in its step's line.

    A missing artifact is a remark, not a problem: users may move artifacts, and no other file depends on
    them.

    Raises:
        BadInput: an existing file cannot be read.
    """
    intact, missing, problems = 0, 0, []
    for line in run.ledger:
        folder = run.run_dir.artifacts / f"step-{line.step}"
        for name, written in line.artifacts.items():
            found = measure_file(run.run_dir.files, folder / name) if is_plain_name(name) else None
            intact += found == written
            missing += found is None
            if found is not None and found != written:
                problems.append(
                    LedgerProblem(
                        "artifact", f"{name} differs from the file that the script wrote", line.step
                    )
                )
    remarks = (f"{missing} artifacts are missing",) if missing else ()
    return ModelFiles(intact, tuple(problems), remarks)


# -- contradictions between the ledger of a run and its other files, or within the ledger ----------------


def find_run_problems(run: Recorded) -> tuple[LedgerProblem, ...]:
    """Find the problems that `elastane.run.observability.verify`, which reads only the ledger, cannot see."""
    pinned = run.record.pinned
    is_stream = pinned is not None and not pinned.dataset_length
    streams = find_stream_position_problems(run.ledger) if is_stream else ()
    return (*find_digest_problems(run), *streams, *find_end_problems(run))


def find_end_problems(run: Recorded) -> Iterable[LedgerProblem]:
    """Find a ledger that ends at another step than the last event records."""
    event, pinned = find_outcome_event(run.events), run.record.pinned
    if event is None or event.kind not in ENDS_WITH_MODEL or pinned is None:
        return
    finished = event.kind == "run.finished"
    last = run.ledger[-1].step if run.ledger else 0
    # The number of steps of other finished runs is pinned, and checked with the ledger.
    counted = finished and (pinned.steps > 0 or event.who == SCRIPT)
    if event.step is not None and event.step != last and not counted:
        how = "finished" if finished else "stopped"
        yield LedgerProblem(
            "steps", f"the run {how} after step {event.step}, but its ledger ends with step {last}"
        )
    if (
        finished
        and not pinned.steps
        and event.who != SCRIPT
        and run.ledger
        and not run.ledger[-1].samples.ended
    ):
        text = "the run finished with its stream, but the last step does not end an epoch"
        yield LedgerProblem("samples", text, last)
