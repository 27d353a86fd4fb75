"""A name that may be a run's on this machine or a job's of the cluster."""

from elastane.api.errors import BadInput, NoSuchRun
from elastane.api.rundir import RunDir
from elastane.client.context import find_context
from elastane.client.runs_home import find_run


def find_run_or_job(name: str, *, job: bool) -> RunDir | None:
    """The run of this name or in this directory; None: ask the cluster for a job of that name.

    Args:
        name: as typed.
        job: the user means the cluster's job, whatever is here.

    Raises:
        NoSuchRun: there is no such run, and no cluster is known here.
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
