"""The end of a worker that cannot go on where another one can: it is replaced, and the run goes on."""

import os
import sys
from typing import NoReturn

from elastane.api.control import CANNOT_GO_ON
from elastane.api.resources import Resource


def exit_for_replacement(why: str, resource: Resource | None = None) -> NoReturn:
    """End this process at once, from any thread; to the run that is a death like any other.

    Args:
        why: for the log.
        resource: that it ran out of; the exit code names it to the coordinator. None: it lacks nothing.
    """
    if resource is not None:
        why += f"\nthis worker ran out of {resource.name} and ends, to be replaced; {resource.do}"
    sys.stderr.write(f"{why}\n")
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(CANNOT_GO_ON if resource is None else resource.exit_code)
