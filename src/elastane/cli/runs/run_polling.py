"""Polling of a run until it is over; the run of a job is over when the job has ended."""

import sys
import time
from collections.abc import Iterator

from elastane.cli.run_lookup import find_active_job
from elastane.run.connections.run_lock import is_live
from elastane.run.nouns.rundir import RunDir

LOOK_S = 0.2
BETWEEN_ATTEMPTS_S = 1.0
"""Longer than ``LOOK_S``, because each poll between attempts asks the controller."""


def poll_run(run_dir: RunDir, *, follow: bool) -> Iterator[bool]:
    """Yield whether more output may come, poll after poll; False, once, when the run is over.

    The caller reads the files of the run after each value, so it still reads the last output.
    """
    shown = ""
    while follow:
        live = is_live(run_dir)
        job = None if live else find_active_job(run_dir)
        if not live and job is None:
            break
        yield True
        # The caller has read the last output of the attempt by now.
        if job is not None and job.state not in (shown, "running"):
            print(f"{job.name} is {job.state}; waiting for its next attempt", file=sys.stderr, flush=True)
        shown = "" if job is None else job.state
        time.sleep(LOOK_S if live else BETWEEN_ATTEMPTS_S)
    yield False
