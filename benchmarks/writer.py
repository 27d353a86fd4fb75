"""Write as many bytes as a checkpoint on request, in a process outside any training.

It writes at the priority of Elastane's writer, from memory that is already mapped. Its effect on a run is the
cost of writing on this machine by any program.
"""

import os
import sys
import time
from pathlib import Path

from elastane.run.worker.checkpoints.part_writer import WRITER_NICE

PIECE = 16 << 20
POLL_S = 0.01


def request_write(folder: Path, step: int) -> None:
    (folder / f"write-{step}").touch()


def main(folder: Path, nbytes: int, me: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, WRITER_NICE)
    state = memoryview(bytearray(os.urandom(1 << 20) * (nbytes >> 20)))
    done: set[str] = set()
    while True:
        for asked in {path.name for path in folder.glob("write-*")} - done:
            done.add(asked)
            write(folder / f"bystander-{me}", state)
        time.sleep(POLL_S)


def write(path: Path, state: memoryview) -> None:
    """Write as fast as this disk allows, and durably."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    while state:
        state = state[os.write(fd, state[:PIECE]) :]
    os.fsync(fd)
    os.close(fd)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
