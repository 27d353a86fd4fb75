"""The directory of all runs, and the lookup of a run by name."""

import os
from difflib import get_close_matches
from pathlib import Path

from elastane.api.errors import NoSuchRun
from elastane.api.rundir import RunDir


def find_runs_home() -> Path:
    """Return the directory of all runs: ``$ELASTANE_HOME/runs``, by default ``~/.elastane/runs``."""
    home = os.environ.get("ELASTANE_HOME")
    return (Path(home) if home else Path.home() / ".elastane") / "runs"


def find_run(name_or_dir: str) -> RunDir:
    """Return the run with this directory or name; a directory wins.

    Raises:
        NoSuchRun: neither holds a ``run.json``.
    """
    for candidate in (Path(name_or_dir), find_runs_home() / name_or_dir):
        run_dir = RunDir(candidate.resolve())
        if run_dir.run.is_file():
            return run_dir
    known = list_run_names()
    near = get_close_matches(name_or_dir, known, n=1)
    raise NoSuchRun(
        f"there is no run {name_or_dir!r}",
        means=f"not a run directory; runs in {find_runs_home()}: {', '.join(known) or 'none'}",
        do=f"did you mean {near[0]}?" if near else "elastane list",
    )


def list_run_names() -> list[str]:
    """Return the names of all runs in the home, sorted."""
    if not find_runs_home().is_dir():
        return []
    return sorted(entry.name for entry in find_runs_home().iterdir() if RunDir(entry).run.is_file())
