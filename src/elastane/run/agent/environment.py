"""The environment of the processes of a run: the user's environment with a fixed hash seed."""

import platform
from collections.abc import Mapping

HASH_SEED = {"PYTHONHASHSEED": "0"}
"""Gives a ``set`` of strings the same order in every process and every attempt of a run.

Python otherwise draws a seed for each process. A script that numbers its vocabulary or orders its parameter
groups by a set would then train a different model in a joiner, and after a resume.
"""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
MALLOC_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Variables of a worker, unless the user has set them: glibc keeps the memory that a step has freed for the
next one. Otherwise it may return gradients to the kernel, which clears them again in each step; that takes a
tenth of a step's time. The first value is the largest that glibc accepts."""
GPU_CLAIMS = "ELASTANE_GPU_CLAIMS"
"""Variable of jobs that run as different users: the folder in which all of them claim GPUs."""

PORTABLE = {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2"}
"""Variables of workers with portable numerics, which the libraries read when they are loaded. All three have
to be set: capping ATen alone leaves the choice of kernels to oneDNN and MKL."""


def build_process_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process of a run: ``inherited``, with `HASH_SEED`."""
    return {**inherited, **HASH_SEED}


def list_portable_variables(architecture: str) -> dict[str, str]:
    """Return the variables that select the same kernels on all CPUs of an architecture, such as x86_64."""
    capability = "avx2" if architecture in ("x86_64", "AMD64") else "default"
    return {**PORTABLE, "ATEN_CPU_CAPABILITY": capability}


def build_worker_environment(
    inherited: Mapping[str, str], threads: int, numerics: str = "native"
) -> dict[str, str]:
    """Return the environment of workers, and of the fork server that forks them."""
    pinned = dict.fromkeys(THREAD_VARIABLES, str(threads))
    if numerics == "portable":
        pinned |= list_portable_variables(platform.machine())
    return build_process_environment({**MALLOC_VARIABLES, **inherited, **pinned})
