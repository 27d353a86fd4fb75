"""The end of a worker that cannot go on where another one can: it is replaced, and the run goes on."""

import os
import sys
from typing import NoReturn

from elastane.api.control import CANNOT_GO_ON


def end_to_be_replaced(why: str) -> NoReturn:
    """End this process at once, from any thread; to the run that is a death like any other.

    Args:
        why: for the log.
    """
    sys.stderr.write(f"{why}\n")
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(CANNOT_GO_ON)
