"""The directories in which a local engine keeps its jobs."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from elastane.common.errors import BadInput
from elastane.run.nouns.rundir import RunDir


class EngineDirectories(msgspec.Struct, frozen=True):
    """The paths in ``home``.

    ``runs/JOB`` is a job's run directory. The file ``unsettled/JOB`` exists from before the first attempt
    until the job's end is recorded elsewhere, so that thousands of settled jobs are never read again.
    """

    home: Path

    def get_run_dir(self, job: str) -> RunDir:
        return RunDir(self.home / "runs" / job)

    def list_unsettled(self) -> Collection[str]:
        try:
            return {entry.name for entry in (self.home / "unsettled").iterdir()}
        except FileNotFoundError:
            return ()

    def is_unsettled(self, job: str) -> bool:
        return (self.home / "unsettled" / job).exists()

    def mark_unsettled(self, job: str) -> None:
        marker = self.home / "unsettled" / job
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()

    def check_ownership(self, job: str) -> None:
        """Check that the run directory, if it is there, belongs to the user of this engine.

        Raises:
            BadInput: it belongs to another user, under which the job ran before.
        """
        root = self.get_run_dir(job).root
        try:
            owner, own_user = root.stat().st_uid, root.parent.stat().st_uid
        except OSError:
            return
        if owner != own_user:
            raise BadInput(
                f"the run directory {root} belongs to user {owner}, but the job would run as user {own_user}",
                means="it ran as another user before, so its files cannot be trusted; the job waits",
                do="start the controller with that user again (elastane up --run-as), "
                "or cancel the job and submit it under another name",
            )

    def settle(self, job: str) -> None:
        with suppress(FileNotFoundError):
            (self.home / "unsettled" / job).unlink()
