"""The wait of a joined machine for the next attempt of a run that has lost its state.

One machine resumes it from its newest checkpoint. The others wait: if their command ended, the scheduler
that started it would give the devices of their machine away.
"""

import time

from elastane.common.errors import ElastaneError
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.endpoint import read_own_endpoint
from elastane.run.connections.run_lock import is_locked
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord
from elastane.run.observability.run_files import read_record

LOOK_S = 0.5
UNLOCKED_S = 5.0
"""How long the run directory may be unlocked. The program that begins the attempts of a run locks it."""


def wait_for_next_attempt(run_dir: RunDir, last: RunRecord) -> RunRecord | None:
    """Wait until the next attempt of a run has begun.

    Args:
        run_dir: of the run.
        last: the record of the attempt that has ended.

    Returns:
        The record of the next attempt; None: no program has locked the run directory to begin it.
    """
    locked_s = time.monotonic()
    while time.monotonic() - locked_s < UNLOCKED_S:
        if is_locked(run_dir.lock):
            locked_s = time.monotonic()
        if (record := _read_next(run_dir, last)) is not None:
            return record
        time.sleep(LOOK_S)
    return None


def _read_next(run_dir: RunDir, last: RunRecord) -> RunRecord | None:
    """Return the record of the next attempt once its coordinator answers; None: not yet."""
    try:
        record = read_record(run_dir)
        if record.resumed is None or record.resumed == last.resumed:
            return None
        return record if read_own_endpoint(run_dir, record.resumed.times).term else None
    except (OSError, ElastaneError, Malformed):
        # The files change now, or the file system is away.
        return None
