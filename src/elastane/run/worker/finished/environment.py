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

from elastane.run.nouns.training_environment import TrainingEnvironment

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


CAP_INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")


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


def describe_machine() -> dict[str, str]:
    """Return the facts about the machine and its libraries that may change the bits of kernels, by name."""
    build = torch.__config__.show()
    facts = {
        "CPU": _find_processor(),
        "CPU capability": str(torch.backends.cpu.get_cpu_capability()),
        "MKL": _find_line(build, "Math Kernel Library Version"),
        "oneDNN": _find_line(build, "MKL-DNN") if torch.backends.mkldnn.enabled else "disabled",
        "torch build": f"{torch.__version__}, {torch.version.git_version[:12]}",
        "device": torch.cuda.get_device_name() if _uses_cuda() else "",
    }
    facts |= {name: os.environ.get(name, "") for name in CAP_INSTRUCTIONS}
    return {name: fact for name, fact in facts.items() if fact}


def _uses_cuda() -> bool:
    """Return whether this process trains on a GPU; the question alone must not initialise one."""
    return bool(torch.cuda.is_initialized())


def _find_line(text: str, word: str) -> str:
    return next((line.strip(" -") for line in text.splitlines() if word in line), "")


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
