"""The environment of the processes of a run: the user's own, with a fixed hash seed."""

from collections.abc import Mapping

HASH_SEED = {"PYTHONHASHSEED": "0"}
"""Gives a ``set`` of strings the same order in every process and every attempt of a run.

Python otherwise draws a seed for each process. A script that numbers its vocabulary or orders its parameter
groups by a set would then train another model in a joiner, and in the run after a resume.
"""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
MALLOC_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Of a worker, unless the user has set them: glibc keeps what a step has freed for the next one. Else it may
give gradients back to the kernel and have them cleared anew in each step, a tenth of its time. The first is
the largest that glibc takes."""


def build_process_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process of a run: ``own``, with `HASH_SEED`."""
    return {**own, **HASH_SEED}


def build_worker_environment(own: Mapping[str, str], threads: int) -> dict[str, str]:
    """Return the environment of workers, and of the fork server that forks them.

    Args:
        own: the environment of the process that starts it.
        threads: of numerical libraries in it.
    """
    return build_process_environment(
        {**MALLOC_VARIABLES, **own, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    )
