"""The free memory of this machine."""

from pathlib import Path

MEMORY = Path("/proc/meminfo")
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def read_available_bytes(memory: Path = MEMORY, container_limit: Path = CONTAINER_LIMIT) -> int:
    """Return the memory that is free on this machine, and no more than the limit of its container.

    Args:
        memory: the file of the kernel with the memory of the machine, see proc(5).
        container_limit: the file with the limit of the control group; it need not exist.

    Raises:
        OSError: the first file cannot be read.
    """
    lines = dict(line.split(":", 1) for line in memory.read_text(encoding="ascii").splitlines())
    available_bytes = int(lines["MemAvailable"].split()[0]) * 1024
    limit = container_limit.read_text(encoding="ascii").strip() if container_limit.exists() else ""
    return min(available_bytes, int(limit)) if limit.isdecimal() else available_bytes
