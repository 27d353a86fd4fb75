"""Resources of a machine that a process may run out of, and the exit codes of workers that did.

An exit code takes no descriptor, memory or thread to be reported: it arrives where a message might not.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource.

    Args:
        name: as in "it ran out of NAME".
        exit_code: of a worker whose own code, not its script's, ran out of it; above every code of a script.
        do: what to do about it; completes a sentence.
    """

    name: str
    exit_code: int
    do: str


FILE_DESCRIPTORS = Resource("file descriptors", 171, "raise the limit of open files with ulimit -n")
MEMORY = Resource(
    "memory", 172, "use fewer workers (--workers), or give the machine or its container more memory"
)
THREADS = Resource(
    "threads or processes", 173, "raise the limit with ulimit -u, or the limit of processes of the container"
)
SHARED_MEMORY = Resource(
    "shared memory", 174, "make /dev/shm larger (docker run --shm-size), or use fewer workers (--workers)"
)

RESOURCES = {resource.exit_code: resource for resource in (FILE_DESCRIPTORS, MEMORY, THREADS, SHARED_MEMORY)}
"""By the exit code of a worker that ran out of one."""
