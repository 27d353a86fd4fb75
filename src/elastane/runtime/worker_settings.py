"""Where and how this process takes part: as a worker of a run, or alone."""

from pathlib import Path

import msgspec

from elastane.api.rundir import RunDir
from elastane.api.spec import Resumed, RunSpec


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `elastane.join` needs to know.

    Args:
        spec: of the run; its defaults when alone, so that both give the same bytes.
        worker: own number.
        run_dir: None alone.
        resumed: what this attempt of the run began with; None: it is its first.
    """

    spec: RunSpec
    worker: int = 0
    run_dir: RunDir | None = None
    resumed: Resumed | None = None


_settings = WorkerSettings(spec=RunSpec(name="alone", script=""))


def get_settings() -> WorkerSettings:
    """The settings of this process."""
    return _settings


def set_settings(run_dir: Path, worker: int, spec: RunSpec, resumed: Resumed | None = None) -> None:
    """This process is a worker of a run; called before its script begins."""
    global _settings  # noqa: PLW0603 - a process takes part in one run, decided before the script runs
    _settings = WorkerSettings(spec=spec, worker=worker, run_dir=RunDir(run_dir), resumed=resumed)
