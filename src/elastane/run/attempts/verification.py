"""Verification of a run from its files, with the rules by which the runtime assigns samples."""

import msgspec

from elastane.run.nouns.records import SCRIPT
from elastane.run.observability.artifact_files import check_artifacts
from elastane.run.observability.coverage import SampleRules
from elastane.run.observability.facts import find_outcome
from elastane.run.observability.model_files import check_model
from elastane.run.observability.run_files import Recorded
from elastane.run.observability.run_problems import find_run_problems
from elastane.run.observability.verify import Verdict, sort_problems, verify_ledger
from elastane.run.protocol.cursors import hash_stream_sample
from elastane.run.protocol.sampling import find_sample_index, hash_sample


def verify_run(run: Recorded) -> Verdict:
    """Verify that every step, virtual rank and sample occurs once, and that the model is unchanged.

    Raises:
        BadInput: a file of the finished model cannot be read.
    """
    verdict, model, artifacts = verify_samples(run), check_model(run), check_artifacts(run)
    problems = sort_problems((*verdict.problems, *model.problems, *artifacts.problems))
    remarks = (*model.remarks, *artifacts.remarks)
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
