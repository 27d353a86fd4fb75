"""``python -m elastane.run.attempts RUN_DIR --attempt N --workers K --limits MIN:MAX``: one attempt of a job.

It needs no terminal. SIGTERM stops the run at the next commit, with a checkpoint.
"""

import argparse
import sys
from pathlib import Path

from elastane.common.errors import BadInput
from elastane.common.permissions import narrow_umask
from elastane.run.attempts.display import LogDisplay
from elastane.run.attempts.job_attempt import NOTHING_TO_DO, AttemptRequest, run_attempt
from elastane.run.attempts.run_directory import reclaim_run_directory
from elastane.run.nouns.rundir import RunDir


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m elastane.run.attempts", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--attempt", type=int, required=True, help="its number")
    parser.add_argument("--workers", type=int, required=True, help="at the start")
    parser.add_argument("--limits", required=True, help="fewest and most, MIN:MAX")
    options = parser.parse_args()
    low, _, high = options.limits.partition(":")
    narrow_umask()
    request = AttemptRequest(options.attempt, options.workers, (int(low), int(high)))
    display = LogDisplay()
    try:
        with reclaim_run_directory(RunDir(options.run_dir.absolute())) as run_dir:
            code = run_attempt(run_dir, request, display)
    except BadInput as error:
        # The lock shows that another process runs this attempt or the one before.
        display.say(f"not started: {error}")
        code = NOTHING_TO_DO
    sys.exit(code)


if __name__ == "__main__":
    main()
