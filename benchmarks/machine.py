"""The machine and the commit of the measurements."""

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent


def describe() -> dict[str, str | int]:
    return {
        "cpu": find_cpu(),
        "cores": count_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "elastane": version("elastane"),
    }


def make_file_name() -> str:
    """Return the machine as a file name: the processor's model and the number of usable cores."""
    words = re.sub(r"[^a-z0-9]+", "-", find_cpu().lower()).strip("-")
    return f"{words}-{count_cores()}-cores"


def count_cores() -> int:
    return len(os.sched_getaffinity(0))


def find_cpu() -> str:
    """Return the processor's model as Linux names it, else its architecture."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def describe_commit(tree: Path = HERE) -> str:
    """Return the commit of a working tree, with a plus if the code has changed since."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
