"""The exit of a worker that cannot continue: another worker replaces it, and the run continues."""

import os
import sys
from typing import NoReturn

from elastane.run.nouns.control import CANNOT_GO_ON
from elastane.run.nouns.resources import Resource


def exit_for_replacement(why: str, resource: Resource | None = None) -> NoReturn:
    """End this process at once, from any thread; the run handles it as any other death.

    Args:
        why: the reason, for the log.
        resource: the exhausted resource, from which the exit code follows; None: no resource.
    """
    cause = "" if resource is None else f" ran out of {resource.name}: it"
    remedy = "" if resource is None else f"; {resource.do}"
    sys.stderr.write(f"{why}\nthis worker{cause} ends, and another one replaces it{remedy}\n")
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(CANNOT_GO_ON if resource is None else resource.exit_code)
