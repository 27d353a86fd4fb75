"""The environment of a training: versions, platform, settings that decide bits; no paths, no hosts."""

import functools
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from elastane.api.training_environment import TrainingEnvironment

DECIDE_BITS = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "PYTHONHASHSEED",
)
"""Environment variables that change the computation of kernels, or its order."""


def describe_environment() -> TrainingEnvironment:
    return TrainingEnvironment(
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        libc=" ".join(platform.libc_ver()),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        processor=_find_processor(),
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
        matmul_precision=torch.get_float32_matmul_precision(),
        variables={name: os.environ[name] for name in DECIDE_BITS if name in os.environ},
        packages=list_imported_packages(),
    )


def encode_environment() -> bytes:
    return msgspec.json.format(msgspec.json.encode(describe_environment()), indent=2) + b"\n"


def list_imported_packages() -> dict[str, str]:
    """Return the version of every installed package that this process has imported, by name."""
    owners = find_owners_of_modules()
    names = {name for module in sys.modules if "." not in module for name in owners.get(module, ())}
    return {name: importlib.metadata.version(name) for name in sorted(names, key=str.lower)}


@functools.cache
def find_owners_of_modules() -> Mapping[str, list[str]]:
    """Return the installed packages that have each top-level module. It takes 0.15 s, so it runs once."""
    return importlib.metadata.packages_distributions()


def _find_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
