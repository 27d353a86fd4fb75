"""Names of runs: ``$ELASTANE_HOME/runs/NAME`` is a run directory or a link to one."""

from elastane.common.home import find_runs_home
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import list_run_names


def list_runs() -> list[RunDir]:
    """Return all runs that have a name, sorted by name."""
    return [RunDir((find_runs_home() / name).resolve()) for name in list_run_names()]
