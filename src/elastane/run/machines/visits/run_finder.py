"""The lookup of a run by its directory, its name, or a ticket."""

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from elastane.common.errors import NoSuchRun
from elastane.common.home import find_runs_home
from elastane.run.machines.tickets.tickets import explain_part_of_ticket, is_ticket
from elastane.run.machines.visits.mirror import is_mirror, keep_mirror
from elastane.run.machines.visits.visits import visit_run
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import list_run_names

MOST_NAMES = 10
"""The most runs that an error names."""


def find_run(name_or_dir: str) -> RunDir:
    """Return the run with this directory, name or ticket; a directory wins.

    If the run is on other machines, its mirror is brought up to date, and kept so until this process ends.

    Raises:
        NoSuchRun: there is no such run, or it has to answer and does not.
        BadInput: the ticket is not valid, or the mirror of the run is damaged.
    """
    for candidate in (Path(name_or_dir), find_runs_home() / name_or_dir):
        run_dir = RunDir(candidate.resolve())
        if _is_true(run_dir.run.is_file):
            if is_mirror(run_dir):
                keep_mirror(run_dir)
            return run_dir
    if is_ticket(name_or_dir):
        return visit_run(name_or_dir)
    if (error := explain_part_of_ticket(name_or_dir)) is not None:
        raise error
    if os.sep in name_or_dir:
        raise _explain_missing_directory(Path(name_or_dir).absolute())
    known = list_run_names()
    near = get_close_matches(name_or_dir, known, n=1)
    raise NoSuchRun(
        f"there is no run {name_or_dir!r}",
        means=f"not a run directory; runs in {find_runs_home()}: {_name_some(known)}",
        do=f"did you mean {near[0]}?" if near else "elastane list",
    )


def _name_some(names: list[str]) -> str:
    """Return the first names, and how many others there are."""
    others = len(names) - MOST_NAMES
    return (", ".join(names[:MOST_NAMES]) or "none") + (f" and {others} more" if others > 0 else "")


def _explain_missing_directory(path: Path) -> NoSuchRun:
    """Return the error for a path that is not the directory of a run here; it may be one elsewhere."""
    if _is_true(path.is_dir):
        return NoSuchRun(
            f"{path} is not the directory of a run: it has no {RunDir(path).run.name}",
            means="it is another directory, or the file system of the run is not mounted there",
            do="check the path, and mount the file system of the run; elastane list shows the runs by name",
        )
    return NoSuchRun(
        f"{path} does not exist on this machine",
        means="the file system of the run is perhaps not mounted here, or the path is another one",
        do="mount it at the same path as on the other machines, or correct the path; elastane list shows the "
        "runs by name",
    )


def _is_true(check: Callable[[], bool]) -> bool:
    """Return whether a check of a path holds."""
    try:
        return check()
    except OSError:
        # A ticket may be longer than any name of a file.
        return False
