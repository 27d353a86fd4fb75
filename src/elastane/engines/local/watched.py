"""What a local engine remembers of a job between two looks: nothing that it could not read again."""

import logging
import time
from contextlib import suppress

import msgspec

from elastane.agent import identity
from elastane.agent.presence import NO_DIRECTORY, anyone_present
from elastane.api.errors import BadInput, ElastaneError
from elastane.api.lives import Life
from elastane.api.observations import Progress
from elastane.api.rundir import RunDir
from elastane.client.line import Line
from elastane.lives.life_file import read_life
from elastane.observability.pace import Pace, after_event, after_line
from elastane.observability.run_files import decode_event_line, decode_ledger_line, read_record
from elastane.observability.tail import Tail

WITHIN_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class Watched:
    """One job's files, looked at again and again."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        self.line = Line(run_dir)
        self.present = False
        self.agent = False
        self.life: Life | None = None
        self.lingering_since: float | None = None
        self._stamp: tuple[int, int] | None = None
        self._told = set[str]()
        self._ledger = Tail(run_dir.ledger, WITHIN_BYTES)
        self._events = Tail(run_dir.events, WITHIN_BYTES)
        self._pace = Pace()
        self._steps: int | None = None
        self._samples = self._ranks = 0

    def look(self) -> None:
        """Who is there, and which life it is."""
        try:
            # In this order: once nobody is present, nobody is left to write how the life ended.
            present = anyone_present(self.run_dir)
            self._read_life()
        except OSError as error:
            # Whoever was not seen gone still has the devices, and has not crashed.
            self._tell(error)
            present = True
        self.agent = self._lives()
        self.present = present or self.agent
        if self.agent or not self.present:
            self.lingering_since = None
        elif self.lingering_since is None:
            self.lingering_since = time.monotonic()

    @property
    def lingering_s(self) -> float:
        return 0.0 if self.lingering_since is None else time.monotonic() - self.lingering_since

    def progress(self) -> Progress:
        """Read on in what the job writes down; what cannot be read is as it was."""
        try:
            self._read_on()
        except OSError as error:
            self._tell(error)
        if self._steps is None:
            self._learn_pinned()
        pace = self._pace
        return Progress(
            step=pace.step,
            loss=pace.loss,
            recent_loss=pace.recent_loss,
            steps=self._steps or 0,
            samples_per_step=self._samples or pace.samples,
            virtual_ranks=self._ranks,
            speeds=tuple((workers, speed.samples_per_s) for workers, speed in sorted(pace.speeds.items())),
            resize_s=pace.resize_s,
            saved_s=pace.saved_s,
        )

    def _read_life(self) -> None:
        try:
            stat = self.run_dir.life.stat()
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
            self._stamp = None
            # Whoever removes the directory of a run ends none of its processes.
            if not self._lives():
                self.life = None
            return
        # Replaced as a whole each time, so another content is another file.
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if stamp != self._stamp:
            try:
                self.life = read_life(self.run_dir)
            except BadInput as error:
                # Another life would say it.
                self._tell(error)
            self._stamp = stamp

    def _lives(self) -> bool:
        """Whether the agent of the newest life that is known does."""
        life = self.life
        return life is not None and life.outcome is None and identity.started(life.pid) == life.started

    def _tell(self, error: Exception) -> None:
        """One job's damage must not keep anybody from seeing the others. Told once."""
        if str(error) not in self._told:
            self._told.add(str(error))
            logger.warning("%s", error)

    def _read_on(self) -> None:
        for line in self._ledger.new_lines():
            # A ledger that was cut and has grown again may be entered in the middle of a line.
            with suppress(msgspec.DecodeError):
                self._pace = after_line(self._pace, decode_ledger_line(line))
        for line in self._events.new_lines():
            with suppress(msgspec.DecodeError):
                self._pace = after_event(self._pace, decode_event_line(line))

    def _learn_pinned(self) -> None:
        try:
            pinned = read_record(self.run_dir).pinned
        except (ElastaneError, OSError):
            return
        if pinned is not None:
            self._steps, self._samples, self._ranks = pinned.steps, pinned.global_batch, pinned.virtual_ranks
