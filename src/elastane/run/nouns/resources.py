"""The resources of a machine that a process may run out of, and the exit codes of workers that ran out.

An exit code needs no descriptor, memory or thread, so it arrives where a message might not.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource.

    Args:
        name: as in "it ran out of NAME".
        exit_code: exit code of a worker in which Elastane's code, not the script's, ran out of it; above
            every exit code of a script.
        do: the remedy; completes a sentence.
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
"""The resources by the exit code of a worker that ran out of one."""
