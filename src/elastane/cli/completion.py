"""What a shell may complete with the tabulator: names of runs and of jobs.

Whoever presses it wants a name or nothing: where neither home nor cluster tells one, nobody is told why.
"""

from itertools import islice

from elastane.api.errors import ElastaneError
from elastane.client.context import connect
from elastane.client.runs_home import list_run_names

MOST = 200
"""Jobs, the newest: nobody reads more."""


def complete_runs(incomplete: str) -> list[str]:
    """Names of runs on this machine that begin so."""
    return [name for name in list_run_names() if name.startswith(incomplete) and name.isprintable()]


def complete_jobs(incomplete: str) -> list[str]:
    """Names of jobs of the cluster that begin so, as far as the token may see, newest first."""
    try:
        with connect() as cluster:
            return [job.name for job in islice(cluster.jobs(prefix=incomplete), MOST)]
    except ElastaneError:
        return []


def complete_runs_and_jobs(incomplete: str) -> list[str]:
    """Both; the run of a job is named once."""
    return list(dict.fromkeys((*complete_runs(incomplete), *complete_jobs(incomplete))))
