"""Runs of unmodified scripts, which some commands cannot serve."""

from elastane.common.errors import BadInput
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_record


def find_trained_run(name: str, wanted: str) -> RunDir:
    """Return a run of a script that trains through Elastane.

    Args:
        name: of the run, or its directory.
        wanted: what other runs lack; completes "it has no".

    Raises:
        NoSuchRun: there is no such run.
        BadInput: it runs an unmodified script.
    """
    run_dir = find_run(name)
    if read_record(run_dir).spec.contract is None:
        return run_dir
    raise BadInput(
        f"{name} runs an unmodified script (--contract torchrun), so it has no {wanted}",
        means="the model and its snapshots belong to the script, which writes them itself",
        do="use the files of the script; for those of Elastane, call elastane.join() in it (docs/script.md)",
    )
