"""Exit codes of ``elastane`` and of a run."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command, or a run, ends with.

    The code of a run whose script has ended by itself is the script's own, 1 to 127.
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
    """As shells count a program that Ctrl-C has ended: 128 and the number of SIGINT."""
