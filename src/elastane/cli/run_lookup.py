"""Lookup of a name that may belong to a run on this machine or to a job of the cluster."""

from elastane.common.connections.controller_context import find_context
from elastane.common.errors import BadInput, NoSuchRun
from elastane.run.machines.visits.run_finder import find_run
from elastane.run.nouns.rundir import RunDir


def find_run_or_job(name: str, *, job: bool) -> RunDir | None:
    """Return the run with this name or directory; None: ask the cluster for a job of that name.

    Args:
        name: as typed.
        job: look for a job of the cluster only.

    Raises:
        NoSuchRun: there is no such run, and no cluster is configured here.
    """
    if job:
        return None
    try:
        return find_run(name)
    except NoSuchRun:
        try:
            find_context()
        except BadInput:
            pass
        else:
            return None
        raise
