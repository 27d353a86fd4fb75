"""Shell completion: names of runs and of jobs.

Completion prints no errors: if the cluster does not answer, it offers no names of jobs.
"""

from itertools import islice

from elastane.cluster.client.context import connect
from elastane.common.errors import ElastaneError
from elastane.run.observability.run_files import list_run_names

MOST = 200
"""The most jobs that are offered, the newest ones."""


def complete_runs(incomplete: str) -> list[str]:
    """List the runs on this machine with names that begin with the typed text."""
    return [name for name in list_run_names() if name.startswith(incomplete) and name.isprintable()]


def complete_jobs(incomplete: str) -> list[str]:
    """List the visible jobs with names that begin with the typed text, newest first."""
    try:
        with connect() as cluster:
            return [job.name for job in islice(cluster.jobs.list(prefix=incomplete), MOST)]
    except ElastaneError:
        return []


def complete_runs_and_jobs(incomplete: str) -> list[str]:
    """List runs and jobs; a name that both have is listed once."""
    return list(dict.fromkeys((*complete_runs(incomplete), *complete_jobs(incomplete))))
