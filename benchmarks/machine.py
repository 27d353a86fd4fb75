"""The machine of the measurements."""

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path


def described() -> dict[str, str | int]:
    return {
        "cpu": cpu(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "elastane": version("elastane"),
    }


def file_name() -> str:
    """Return the machine as a file name: the processor's model and the number of usable cores."""
    words = re.sub(r"[^a-z0-9]+", "-", cpu().lower()).strip("-")
    return f"{words}-{cores()}-cores"


def cores() -> int:
    return len(os.sched_getaffinity(0))


def cpu() -> str:
    """Return the processor's model as Linux names it, else its architecture."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
