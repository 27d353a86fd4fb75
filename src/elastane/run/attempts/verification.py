"""Verification of a run from its files, with the rules by which the runtime assigns samples."""

from collections.abc import Iterable

import msgspec

from elastane.run.nouns.records import ENDS_WITH_MODEL, SCRIPT
from elastane.run.nouns.spec import Pinned
from elastane.run.observability.bound_data import find_site_problems, read_worker_sites
from elastane.run.observability.coverage import LedgerProblem, SampleRules, find_stream_position_problems
from elastane.run.observability.digests import WHOLE, find_digest_problems
from elastane.run.observability.facts import find_outcome, find_outcome_event, is_origin_digest
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
        run.record.pinned,
        run.ledger,
        rules,
        finished=outcome == "finished",
        ended_at=ended_at,
        began_at=run.record.began_at,
        divisions=run.record.divisions,
    )
    origin_problems, origin_remarks = check_origin(run)
    problems = sort_problems((*verdict.problems, *find_run_problems(run), *origin_problems))
    remarks = (*origin_remarks, *verdict.remarks, *describe_divisions(run))
    return msgspec.structs.replace(verdict, ok=not problems, problems=problems, remarks=remarks)


def describe_divisions(run: Recorded) -> Iterable[str]:
    """Describe the steps of which the digests cannot be compared with those of the present attempt."""
    if run.record.divisions:
        until = run.record.divisions[-1].until
        yield (
            f"workers up to step {until} had another number of processes: digests of these steps describe "
            "other parts of the state than later ones, and are not compared with them"
        )


def check_origin(run: Recorded) -> tuple[tuple[LedgerProblem, ...], tuple[str, ...]]:
    """Compare the state with which a run began with the ledger of its origin; return problems and remarks."""
    origin = run.record.origin
    if origin is None:
        return (), ()
    trusted = f"steps 1 to {origin.step} are those of {origin.run}, and taken on trust"
    events = [event for event in run.events if is_origin_digest(event, run)]
    if not events:
        found = "no step has been made from its state, so its digest is not known"
    elif not origin.parameters_sha256:
        found = f"no ledger has a digest of step {origin.step}, so the state is taken on trust too"
    else:
        expected = origin.parameters_sha256, origin.optimizer_sha256
        began = {tuple(event.detail.get(name) for name in WHOLE) for event in events}
        # An attempt with another number of processes has digests of other parts.
        if began == {expected} or (run.record.divisions and expected in began):
            found = f"the state after step {origin.step} has the digest of its ledger"
        elif run.record.pinned is not None and have_same_parts(origin.pinned, run.record.pinned):
            text = f"the state with which the run began is not the one in the ledger of {origin.run}"
            return (LedgerProblem("origin", text, origin.step),), (trusted,)
        else:
            found = (
                "the state has another digest than in its ledger, because the script has changed, or because "
                "the processes of a worker have other parts of it"
            )
    return (), (f"began from {origin}: {found}", trusted)


def have_same_parts(first: Pinned, second: Pinned) -> bool:
    """Return whether digests of two runs at the same state would be equal."""
    return (first.script_digest, first.division) == (second.script_digest, second.division)


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
    streams = find_stream_position_problems(run.ledger, run.record.began_at) if is_stream else ()
    bound = (
        find_site_problems(run.ledger, pinned, read_worker_sites(run.events))
        if pinned is not None and pinned.rank_sites
        else ()
    )
    return (*find_digest_problems(run), *streams, *bound, *find_end_problems(run))


def find_end_problems(run: Recorded) -> Iterable[LedgerProblem]:
    """Find a ledger that ends at another step than the last event records."""
    event, pinned = find_outcome_event(run.events), run.record.pinned
    if event is None or event.kind not in ENDS_WITH_MODEL or pinned is None:
        return
    finished = event.kind == "run.finished"
    last = run.ledger[-1].step if run.ledger else run.record.began_at.step
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
