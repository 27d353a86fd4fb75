"""Observation of a job on this machine, through its processes and its run."""

import time
from contextlib import suppress

from elastane.cluster.engines.run_line import RunLine
from elastane.common import process_identity
from elastane.run.agent.presence import NO_DIRECTORY, is_any_process_present, is_present
from elastane.run.nouns.rundir import RunDir


class JobWatcher(RunLine):
    """Observes one job through its processes, beside the line to its run.

    Args:
        isolated: jobs run as other users than the engine; only processes of the owner of the run directory
            count.
    """

    def __init__(self, run_dir: RunDir, *, isolated: bool = False) -> None:
        super().__init__(run_dir)
        self._isolated = isolated
        self.user: int | None = None
        self.present = False
        self.agent = False
        self.lingering_since: float | None = None
        self._agents: dict[int, int] = {}

    def update(self) -> None:
        """Update which processes exist and which attempt is the newest."""
        if self._isolated:
            # The processes of a run continue when its directory is removed.
            with suppress(OSError):
                self.user = self.run_dir.root.stat().st_uid
        try:
            # Keep this order: once no process is present, none can write the outcome of the attempt.
            present = is_any_process_present(self.run_dir)
            self._read_present_attempt()
        except OSError as error:
            # If the end of the processes cannot be determined, they still count as running and using devices.
            self.log_once("presence", error)
            present = True
        self.agent = self._is_agent_alive()
        self.present = present or self.agent
        if self.agent or not self.present:
            self.lingering_since = None
        elif self.lingering_since is None:
            self.lingering_since = time.monotonic()

    @property
    def lingering_s(self) -> float:
        return 0.0 if self.lingering_since is None else time.monotonic() - self.lingering_since

    def _read_present_attempt(self) -> None:
        try:
            self.read_attempt()
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
            # The processes of a run continue when its directory is removed.
            if not self._is_agent_alive():
                self.attempt = None

    def _is_agent_alive(self) -> bool:
        """Return whether the agent of the newest known attempt is alive."""
        attempt = self.attempt
        if (
            attempt is None
            or attempt.outcome is not None
            or process_identity.read_start_time(attempt.pid) != attempt.started
        ):
            return False
        if self._agents.get(attempt.pid) != attempt.started and is_present(self.run_dir, attempt.pid):
            # One check is enough, because an agent holds the lock until its end.
            self._agents = {attempt.pid: attempt.started}
        # A job may write any process id into attempt.json, even that of another job or of the controller.
        if self._agents.get(attempt.pid) != attempt.started:
            return False
        # The controller also opens the lock file, for a moment at a time.
        return not self._isolated or (
            self.user is not None and process_identity.read_user_id(attempt.pid) == self.user
        )
