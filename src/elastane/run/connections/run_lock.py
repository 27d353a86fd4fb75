"""The locks of the agents of a run, as other processes see them."""

import fcntl
from pathlib import Path

from elastane.common.untrusted_data import Malformed, open_regular
from elastane.run.nouns.rundir import RunDir


def is_live(run_dir: RunDir) -> bool:
    """Return whether an agent of the run, on any of its machines, still holds its lock."""
    return is_locked(run_dir.lock) or any(is_locked(path) for path in run_dir.root.glob("lock-*"))


def is_locked(path: Path) -> bool:
    """Return whether an agent holds this lock."""
    try:
        with open_regular(path, follow_links=False) as lock:
            try:
                # Use a shared lock, so that two simultaneous readers do not mistake each other for the agent.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except (FileNotFoundError, NotADirectoryError, Malformed):
        # An agent locks only a regular file.
        return False
    return False
