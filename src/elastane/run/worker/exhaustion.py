"""Exhausted resources: the resource that an error means, and the code that reached its limit.

If Elastane's own code reaches a limit, the worker dies and is replaced: another process may have more room.
If the script reaches a limit, the run fails, because every worker would reach it. The traceback distinguishes
the two: the error is Elastane's if the innermost frame outside libraries is Elastane's.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NoReturn, TypeVar

from elastane.run.nouns.control import CANNOT_GO_ON
from elastane.run.nouns.resources import FILE_DESCRIPTORS, MEMORY, SHARED_MEMORY, THREADS, Resource

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

ERRNOS = {
    errno.EMFILE: FILE_DESCRIPTORS,
    errno.ENFILE: FILE_DESCRIPTORS,
    errno.ENOMEM: MEMORY,
    # From fork and clone. Non-blocking sockets raise it too, but Elastane's code catches that.
    errno.EAGAIN: THREADS,
}
PHRASES = (
    ("start new thread", THREADS),
    ("resource temporarily unavailable", THREADS),
    ("too many open files", FILE_DESCRIPTORS),
    ("no space left on device", SHARED_MEMORY),
    ("allocate memory", MEMORY),
    ("out of memory", MEMORY),
)
"""Phrases of a `RuntimeError` of Python's threads or of torch, which have no error classes for it."""

SHARED = ("/dev/shm", "/memfd:")  # noqa: S108 - recognised, not written to
LIBRARIES = frozenset(
    {
        *sys.stdlib_module_names,
        *("torch", "numpy", "safetensors", "msgspec", "websockets", "xxhash"),
        *("fsspec", "s3fs", "aiobotocore", "botocore", "aiohttp"),
    }
) - {"__main__"}
"""Packages that Elastane and scripts call: an error inside them belongs to the caller."""

_runs_script: dict[int, CodeType] = {}
"""Keys are identities, because code objects of two files may be equal."""


def runs_script(function: AnyFunction) -> AnyFunction:
    """Mark a function that runs the script's own objects, such as its dataset, model or optimizer.

    An error from such an object is the script's, although a function of Elastane calls the object.
    """
    code: CodeType = function.__code__
    _runs_script[id(code)] = code
    return function


def find_own_exhaustion(error: BaseException) -> Resource | None:
    """Return the resource that Elastane's own code has exhausted; None: the error means something else."""
    for cause in _iterate_causes(error):
        resource = find_exhausted_resource(cause)
        if resource is not None:
            return resource if is_raised_in_elastane(cause) else None
    return None


def find_exhausted_resource(error: BaseException) -> Resource | None:
    """Return the resource that an error means; None: the error means something else."""
    match error:
        case MemoryError():
            return MEMORY
        case OSError(errno=errno.ENOSPC, filename=filename):
            # Without a name it is a semaphore or a memfd. A full disk is not a limit of this process.
            shared = filename is None or str(filename).startswith(SHARED)
            return SHARED_MEMORY if shared else None
        case OSError():
            return ERRNOS.get(error.errno or 0)
        case RuntimeError():
            text = str(error).lower()
            return next((resource for phrase, resource in PHRASES if phrase in text), None)
        case _:
            return None


def is_raised_in_elastane(error: BaseException) -> bool:
    """Return whether the innermost frame outside libraries belongs to Elastane's own code."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == "elastane":
            return id(frame.f_code) not in _runs_script
        if package not in LIBRARIES:
            return False
    return False


def _iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, then the errors from which it was raised."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


# -- the exit of a worker that cannot continue: another worker replaces it, and the run continues --------


def exit_for_replacement(why: str, resource: Resource | None = None, *, code: int = CANNOT_GO_ON) -> NoReturn:
    """End this process at once, from any thread; the run handles it as any other death.

    Args:
        why: the reason, for the log.
        resource: the exhausted resource, from which the exit code follows; None: no resource.
        code: the exit code if no resource is exhausted.
    """
    cause = "" if resource is None else f" ran out of {resource.name}: it"
    remedy = "" if resource is None else f"; {resource.do}"
    sys.stderr.write(f"{why}\nthis worker{cause} ends, and another one replaces it{remedy}\n")
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code if resource is None else resource.exit_code)
