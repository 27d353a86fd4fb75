"""Verification of the files that a script wrote through ``run.artifact``."""

from elastane.run.observability.coverage import LedgerProblem
from elastane.run.observability.model_files import ModelFiles, is_plain_name, measure_file
from elastane.run.observability.run_files import Recorded


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
            found = measure_file(folder / name) if is_plain_name(name) else None
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
