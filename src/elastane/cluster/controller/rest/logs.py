"""Safe reading of a run's logs and records, in a directory that the job may have changed.

The run directory belongs to the job, and the controller may read more files than the job's owner. So no link
is followed, and only regular files are opened.
"""

import os
import re
from pathlib import Path

import msgspec

from elastane.cluster.nouns.agents import AGENT_ID
from elastane.cluster.nouns.rest import ReadRecord
from elastane.common.confined_files import ConfinedDirectory
from elastane.common.permissions import use_owner_rights
from elastane.common.untrusted_data import Malformed
from elastane.run.nouns.rundir import RunDir

PROCESS = rf"^(agent|(coordinator|fork-server)(-{AGENT_ID})?|worker-\d{{1,9}}|{AGENT_ID})$"
"""On machines beyond the first one, processes are named after the agent there; it has a log of its own."""
MOST_BYTES = 1 << 20
DEFAULT_BYTES = 1 << 16


class Part(msgspec.Struct, frozen=True):
    """A part of a log, and the offset of the byte after it."""

    data: bytes
    following: int


def list_processes(run_dir: str) -> tuple[str, ...]:
    """Return the processes that have a log, workers first; none of a job that never began."""
    if not run_dir:
        return ()
    try:
        with use_owner_rights(Path(run_dir)):
            logged = RunDir(Path(run_dir)).list_logs()
    except OSError:
        return ()
    found = (name for name in logged if re.fullmatch(PROCESS, name))
    return tuple(sorted(found, key=lambda name: (not name.startswith("worker-"), len(name), name)))


def read_record_part(run_dir: str, record: ReadRecord, offset: int, limit: int) -> Part | None:
    """Return a part of a record of the run of a job; None: there is no such record."""
    return _read_owned_part(run_dir, record, offset, limit)


def read_log_part(run_dir: str, process: str, offset: int, limit: int) -> Part | None:
    """Return a part of the log of a process; None: it has no log. A negative offset counts from the end."""
    return _read_owned_part(run_dir, f"logs/{process}.log", offset, limit)


def _read_owned_part(run_dir: str, name: str, offset: int, limit: int) -> Part | None:
    if not run_dir:
        return None
    found = RunDir(Path(run_dir))
    try:
        with use_owner_rights(found.root):
            return read_part(found.files, found.root / name, offset, limit)
    except PermissionError:
        return None


def read_part(files: ConfinedDirectory, path: Path, offset: int, limit: int) -> Part | None:
    """Return a part of a file below a directory; None: there is no such file."""
    try:
        file = files.open(path, in_part=True)
    except (OSError, Malformed):
        return None
    with file:
        facts = os.fstat(file.fileno())
        # A hard link to another user's file would look like a file of the job.
        if facts.st_nlink != 1:
            return None
        begin = max(0, facts.st_size + offset) if offset < 0 else min(offset, facts.st_size)
        file.seek(begin)
        data = file.read(limit)
        return Part(data, begin + len(data))
