"""Looking at a run until nothing more comes of it; that of a job has as many attempts as the job needs."""

import sys
import time
from collections.abc import Iterator

from elastane.api.rundir import RunDir
from elastane.cli.runs.ownership import find_active_job
from elastane.observability.run_files import is_live

LOOK_S = 0.2
BETWEEN_ATTEMPTS_S = 1.0
"""The controller is asked then, not only a file."""


def poll_run(run_dir: RunDir, *, follow: bool) -> Iterator[bool]:
    """Look after look, each with whether more may come; the last one when the run is over.

    The question comes before what the run wrote is read, so that what was written last is still read.
    """
    told = ""
    while follow:
        live = is_live(run_dir)
        job = None if live else find_active_job(run_dir)
        if not live and job is None:
            break
        yield True
        # What the attempt that is over said last has been read by now.
        if job is not None and job.state not in (told, "running"):
            print(f"{job.name} is {job.state}; its next attempt is awaited", file=sys.stderr, flush=True)
        told = "" if job is None else job.state
        time.sleep(LOOK_S if live else BETWEEN_ATTEMPTS_S)
    yield False
