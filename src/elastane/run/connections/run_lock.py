"""The locks of the agents of a run, as other processes see them."""

import fcntl
from pathlib import Path

from elastane.common.confined_files import ConfinedDirectory
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.endpoint import has_kept_endpoint
from elastane.run.nouns.rundir import RunDir


def is_live(run_dir: RunDir) -> bool:
    """Return whether an agent of the run, on any of its machines, still holds its lock.

    Machines that share no directory hold none here, but a controller keeps their endpoint until their end.
    """
    locks = (run_dir.lock, *list_node_locks(run_dir))
    return any(map(is_locked, locks)) or has_kept_endpoint(run_dir)


def list_node_locks(run_dir: RunDir) -> list[Path]:
    """Return the paths of the locks of all machines but the first."""
    try:
        names = run_dir.files.list_files(run_dir.root)
    except Malformed:
        # No run has that many machines.
        return []
    return [run_dir.root / name for name in names if name.startswith("lock-")]


def is_locked(path: Path) -> bool:
    """Return whether an agent holds this lock, which is directly in a run directory."""
    try:
        with ConfinedDirectory(path.parent).open(path, in_part=True) as lock:
            try:
                # Use a shared lock, so that two simultaneous readers do not mistake each other for the agent.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except (FileNotFoundError, NotADirectoryError, Malformed):
        # An agent locks only a regular file.
        return False
    return False
