"""Portable numerics give equal bits on several models of CPU, emulated by qemu-user, and on this machine's own.

qemu computes IEEE 754 arithmetic exactly, reports the maker and the instructions of the model, and has its
own approximations for RCPPS and RSQRTPS, as each maker has. It emulates no AVX-512.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastane.agent.environment import build_worker_environment

from .stage import SCRIPTS

EMULATOR = shutil.which("qemu-x86_64")
MODELS = ("Haswell", "Skylake-Client", "EPYC")
"""Two models of Intel and one of AMD, all with AVX2."""
PATIENCE_S = 400

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates models of x86-64 only"),
    pytest.mark.skipif(EMULATOR is None, reason="qemu-x86_64 is not installed (package qemu-user)"),
]


def compute_digests(numerics: str, model: str) -> dict[str, str]:
    """Return the digests that ``kernels.py`` prints on a model of CPU; empty: this machine's own."""
    emulator = [str(EMULATOR), "-cpu", model] if model else []
    done = subprocess.run(
        [*emulator, sys.executable, str(SCRIPTS / "kernels.py"), "--numerics", numerics],
        env=build_worker_environment(os.environ, 1, numerics),
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    digests: dict[str, str] = json.loads(done.stdout)
    return digests


def find_differing(numerics: str) -> list[str]:
    """Return the names of what the models compute with different bits."""
    own = ("",) if "avx2" in Path("/proc/cpuinfo").read_text() else ()
    with ThreadPoolExecutor(2) as threads:
        all_digests = list(threads.map(lambda model: compute_digests(numerics, model), (*MODELS, *own)))
    return [name for name in all_digests[0] if len({digests[name] for digests in all_digests}) > 1]


def test_portable_numerics_compute_the_same_bits_on_several_models() -> None:
    assert find_differing("portable") == []


def test_native_numerics_compute_other_bits_on_other_models() -> None:
    """Otherwise the test above would show nothing."""
    assert {"linear", "transformer", "Adam"} <= set(find_differing("native"))
