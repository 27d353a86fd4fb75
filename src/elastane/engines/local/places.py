"""Where a local engine keeps its jobs, on the disk."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from elastane.api.rundir import RunDir


class Places(msgspec.Struct, frozen=True):
    """Names below ``home``.

    ``runs/JOB`` is a job's run directory. ``unsettled/JOB`` exists from before its first life until its end
    is written down elsewhere, so that thousands of settled jobs are never looked at.
    """

    home: Path

    def run_dir(self, job: str) -> RunDir:
        return RunDir(self.home / "runs" / job)

    def unsettled(self) -> Collection[str]:
        try:
            return {entry.name for entry in (self.home / "unsettled").iterdir()}
        except FileNotFoundError:
            return ()

    def noted(self, job: str) -> bool:
        return (self.home / "unsettled" / job).exists()

    def note(self, job: str) -> None:
        note = self.home / "unsettled" / job
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()

    def settle(self, job: str) -> None:
        with suppress(FileNotFoundError):
            (self.home / "unsettled" / job).unlink()
