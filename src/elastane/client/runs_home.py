"""The home of Elastane on this machine: the directory of all runs, and what belongs to its user."""

import os
from pathlib import Path

from elastane.api.rundir import RunDir


def find_home() -> Path:
    """Return ``$ELASTANE_HOME``, by default ``~/.elastane``."""
    home = os.environ.get("ELASTANE_HOME")
    return Path(home) if home else Path.home() / ".elastane"


def make_home() -> None:
    """Make the home with access for its owner only; an existing one stays as it is."""
    find_home().parent.mkdir(parents=True, exist_ok=True)
    find_home().mkdir(mode=0o700, exist_ok=True)


def find_runs_home() -> Path:
    """Return the directory of all runs: ``$ELASTANE_HOME/runs``, by default ``~/.elastane/runs``."""
    return find_home() / "runs"


def list_run_names() -> list[str]:
    """Return the names of all runs in the home, sorted."""
    if not find_runs_home().is_dir():
        return []
    return sorted(entry.name for entry in find_runs_home().iterdir() if RunDir(entry).run.is_file())
