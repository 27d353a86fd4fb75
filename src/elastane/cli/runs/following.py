"""Looking at a run until nothing more comes of it; that of a job has as many lives as the job needs."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from elastane.api.errors import BadInput
from elastane.api.rundir import RunDir
from elastane.api.wire import ENDED, Job
from elastane.client.context import connect
from elastane.observability.run_files import is_live, read_record

LOOK_S = 0.2
BETWEEN_LIVES_S = 1.0
"""The controller is asked then, not only a file."""


def looks(run_dir: RunDir, *, follow: bool) -> Iterator[bool]:
    """Look after look, each with whether more may come; the last one when the run is over.

    The question comes before what the run wrote is read, so that what was written last is still read.
    """
    told = ""
    while follow:
        live = is_live(run_dir)
        job = None if live else job_that_goes_on(run_dir)
        if not live and job is None:
            break
        if job is not None and job.state not in (told, "running"):
            print(f"{job.name} is {job.state}; its next life is awaited", file=sys.stderr, flush=True)
        told = "" if job is None else job.state
        yield True
        time.sleep(LOOK_S if live else BETWEEN_LIVES_S)
    yield False


def job_that_goes_on(run_dir: RunDir) -> Job | None:
    """The job whose run this is, if it may have another life: it is paused, gave way, or is tried again.

    Raises:
        ElastaneError: it is a job's, and the cluster does not answer.
    """
    # The run of a job knows of its lives from the first one on, and before that has had no events either.
    if not run_dir.life.exists() and run_dir.events.exists():
        return None
    try:
        with connect() as cluster:
            job = cluster.job(read_record(run_dir).spec.name)
    except BadInput:
        return None  # no cluster is known here, or it knows no such job
    here = bool(job.run_dir) and Path(job.run_dir).resolve() == run_dir.root.resolve()
    return job if here and job.state not in ENDED else None
