"""The settings of this process: those of a worker of a run, or of a process that trains alone."""

import msgspec

from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import DATA_START, DataPosition, Resumed, RunOrigin, RunSpec
from elastane.run.worker.gangs.seat import LONE_SEAT, Seat


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that `elastane.join` reads.

    Args:
        spec: the spec of the run; the defaults when alone, so that both train the same bytes.
        run_dir: the run directory; None: the process trains alone.
        resumed: the start of this attempt of the run; None: it is the first attempt.
        origin: the state of another run with which the run began; None: it began from nothing.
        seat: the place of this process in its worker.
        sites: of which it may read the data; a process that trains alone may read all.
    """

    spec: RunSpec
    worker: int = 0
    run_dir: RunDir | None = None
    resumed: Resumed | None = None
    origin: RunOrigin | None = None
    seat: Seat = LONE_SEAT
    sites: tuple[SiteName, ...] = ()

    @property
    def began_at(self) -> DataPosition:
        """The step after which the run began, and where the data stood then."""
        return DATA_START if self.origin is None else self.origin.position


_settings = WorkerSettings(spec=RunSpec(name="alone", script=""))


def get_settings() -> WorkerSettings:
    """Return the settings of this process."""
    return _settings


def set_settings(
    run_dir: RunDir,
    worker: int,
    spec: RunSpec,
    resumed: Resumed | None = None,
    origin: RunOrigin | None = None,
    seat: Seat = LONE_SEAT,
    sites: tuple[SiteName, ...] = (),
) -> None:
    """Make this process a worker of a run, before its script begins."""
    global _settings  # noqa: PLW0603 - a process has one run, known before the script runs
    _settings = WorkerSettings(
        spec=spec, worker=worker, run_dir=run_dir, resumed=resumed, origin=origin, seat=seat, sites=sites
    )
