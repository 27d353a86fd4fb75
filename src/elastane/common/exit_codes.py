"""Exit codes of ``elastane`` and of a run."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a command or a run.

    If the script exits by itself, its own exit code, 1 to 127, is that of the run.
    """

    OK = 0
    """Done, proved or equal."""
    FAILED = 1
    """The run or the job failed, two runs differ, a checkpoint is damaged, or the cluster does not answer."""
    BAD_INPUT = 2
    """The request cannot be met; nothing was changed."""
    NOT_FOUND = 3
    """There is no such run, job or document, or the run is not running."""
    STOPPED_BY_USER = 130
    """The code that shells report after Ctrl-C: 128 plus the number of SIGINT."""
