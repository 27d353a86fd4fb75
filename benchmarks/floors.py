"""Measure the costs of the parts alone: no elastic trainer on this machine can be cheaper."""

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

from job import HERE
from processes import Processes
from setting import Setting


def measure(setting: Setting) -> dict[str, Any]:
    """Return seconds, except for ``copy_gb``."""
    warm = run_and_parse(
        [sys.executable, str(HERE / "floor_warm.py"), setting.size, str(setting.repetitions)]
    )
    return {
        "import_torch_cpu_s": [measure_import_cpu_s() for _ in range(setting.repetitions)],
        "cold_process_s": [measure_cold_process_s() for _ in range(setting.repetitions)],
        "new_gloo_group_s": measure_gloo_group_s(setting),
        **warm,
    }


def measure_import_cpu_s() -> float:
    """Return the user and system time of a process that imports torch."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_cold_process_s() -> float:
    """Return the seconds from nothing to a process that can compute with tensors."""
    begin_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch; torch.ones(1) + 1"], check=True)
    return time.monotonic() - begin_s


def measure_gloo_group_s(setting: Setting) -> list[float]:
    """Return the seconds of a second group among two processes that have one, first collective included."""
    folder = setting.work / "gloo"
    out = folder / "seconds.json"
    with Processes(folder) as processes:
        for rank in range(2):
            processes.start(
                [
                    sys.executable,
                    str(HERE / "floor_gloo.py"),
                    str(setting.repetitions),
                    str(out),
                ],
                RANK=str(rank),
                WORLD_SIZE="2",
                STORE=f"file://{(folder / 'store').absolute()}",
                GLOO_SOCKET_IFNAME="lo",
            )
        processes.finish(timeout_s=120)
    seconds: list[float] = json.loads(out.read_text())
    return seconds


def run_and_parse(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
