"""The line to a run: its files, and questions and orders to its coordinator, for all engines.

An engine starts and ends processes. All else about a run is here: its progress, its outcome and its status,
and the orders that its coordinator carries out.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from elastane.cluster.engines.pace import Pace, add_event_to_pace, add_line_to_pace
from elastane.cluster.nouns.engine import (
    Crossing,
    DrainWorker,
    EvictWorkers,
    JobProgress,
    Observation,
    ResizeJob,
    StopAttempt,
)
from elastane.common.errors import BadInput, ElastaneError, NoSuchRun
from elastane.common.field_checks import MOST_WORKERS
from elastane.common.permissions import use_owner_rights
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.attempts.attempt_file import read_attempt
from elastane.run.connections.coordinator_request import CoordinatorClient
from elastane.run.nouns.attempts import Attempt, AttemptOutcome
from elastane.run.nouns.control import (
    Answer,
    Ask,
    AskDrain,
    AskEvict,
    AskResize,
    AskStatus,
    AskStop,
    ProcessInfo,
)
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_event_line, decode_ledger_line, read_record
from elastane.run.observability.tail import Tail

ANSWER_S = 1.0
REQUESTS_AT_ONCE = 64
"""The most simultaneous requests; the answers of a thousand could not be read within a second."""
WITHIN_BYTES = 1 << 20
MOST_LINES = 5_000
"""The most lines of each file that one reading uses; the newest count."""
ENDING = ("stopping", "finishing", "over")

RunOrder: TypeAlias = ResizeJob | DrainWorker | EvictWorkers | StopAttempt
"""The orders that the coordinator of a run carries out. The others start or end processes."""

logger = logging.getLogger(__name__)


class RunLine:
    """The line to one run; ``attempt`` is the newest one that has begun, as its file last said, or None."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        self.attempt: Attempt | None = None
        self._coordinator = CoordinatorClient(run_dir)
        self._stamp: tuple[int, int] | None = None
        self._logged = set[str]()
        self._ledger = Tail(run_dir.files, run_dir.ledger, WITHIN_BYTES)
        self._events = Tail(run_dir.files, run_dir.events, WITHIN_BYTES)
        self._pace = Pace()
        self._steps: int | None = None
        self._samples = self._ranks = self._parameters = 0

    def read_attempt(self) -> None:
        """Read the newest attempt, if its file has changed.

        Raises:
            OSError: the file cannot be found.
        """
        try:
            stat = self.run_dir.attempt.lstat()
        except OSError:
            self._stamp = None
            raise
        # The file is replaced on every change, so new content means another file.
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if stamp != self._stamp:
            try:
                self.attempt = read_attempt(self.run_dir)
            except (BadInput, PermissionError) as error:
                # A job can write anything there, or forbid reading it. Neither means that its processes
                # exist. The next attempt reports the damage.
                self.log_once("attempt", error)
            self._stamp = stamp

    def read_outcome(self, attempt: int) -> AttemptOutcome | None:
        """Return the recorded outcome of an attempt; None: none is recorded, or it cannot be read now."""
        try:
            self.read_attempt()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.log_once("attempt", error)
        newest = self.attempt
        return newest.outcome if newest is not None and newest.number == attempt else None

    def read_progress(self) -> JobProgress:
        """Read the new lines of the job's files and return its progress; unreadable values stay the same."""
        # A file of another user may lead to a file that only this process may read.
        with use_owner_rights(self.run_dir.root):
            try:
                self._read_new_lines()
            except (OSError, BadInput) as error:
                self.log_once("progress", error)
            if self._steps is None:
                self._read_pinned()
        pace = self._pace
        return JobProgress(
            step=pace.step,
            loss=pace.loss,
            recent_loss=pace.recent_loss,
            steps=self._steps or 0,
            samples_per_step=self._samples or pace.samples,
            virtual_ranks=self._ranks,
            speeds=pace.ordered_speeds,
            weights=pace.weights,
            resize_s=pace.resize_s,
            saved_s=pace.saved_s,
            parameters=self._parameters,
        )

    async def ask(self, question: Ask) -> Answer | None:
        """Ask the coordinator of the run; None: it did not answer in time."""
        return await self._coordinator.ask(question, ANSWER_S)

    async def ask_status(self) -> Answer | None:
        """Return the status of the run; None: its coordinator did not answer in time."""
        return await self.ask(AskStatus())

    def observe(self, job: str, counts: "WorkerCounts") -> Observation:
        """Return what the files and the coordinator of the run show; the caller adds its processes."""
        return Observation(
            job=job,
            workers=counts.workers,
            members=counts.members,
            target=counts.target,
            fixed=counts.ending,
            crossings=counts.crossings,
            progress=self.read_progress(),
            run_dir=str(self.run_dir.root),
        )

    async def carry_out(self, order: RunOrder, *, unless_by_hand: bool = False) -> str:
        """Send an order to the coordinator and return why it was not accepted; empty: it was.

        Args:
            unless_by_hand: leave a number of workers that a user has set.
        """
        answer = await self.ask(make_request(order, unless_by_hand=unless_by_hand))
        return f"its coordinator did not answer within {ANSWER_S:g} s" if answer is None else answer.why

    async def close(self) -> None:
        """Close the connection; the run continues."""
        await self._coordinator.close()

    def log_once(self, about: str, error: Exception) -> None:
        """Log an error of one of the job's files, once for each file.

        Such an error must not affect other jobs, nor fill the log.
        """
        if about not in self._logged:
            self._logged.add(about)
            logger.warning("%s", escape_line(str(error)))

    def _read_new_lines(self) -> None:
        for line in self._ledger.read_new_lines()[-MOST_LINES:]:
            try:
                self._pace = add_line_to_pace(self._pace, decode_ledger_line(line))
            except Malformed as error:
                # After a ledger was cut and has grown again, reading may start in the middle of a line.
                self.log_once("ledger", BadInput(f"{self.run_dir.ledger}: a line was skipped: {error}"))
        for line in self._events.read_new_lines()[-MOST_LINES:]:
            try:
                self._pace = add_event_to_pace(self._pace, decode_event_line(line))
            except Malformed as error:
                self.log_once("events", BadInput(f"{self.run_dir.events}: a line was skipped: {error}"))

    def _read_pinned(self) -> None:
        try:
            pinned = read_record(self.run_dir).pinned
        except NoSuchRun:
            return
        except (ElastaneError, OSError) as error:
            self.log_once("run.json", error)
            return
        if pinned is not None:
            self._steps, self._samples, self._ranks = pinned.steps, pinned.global_batch, pinned.virtual_ranks
            self._parameters = pinned.parameters


def make_request(order: RunOrder, *, unless_by_hand: bool = False) -> Ask:
    """Return the request to a coordinator that stands for an order; see `RunLine.carry_out`."""
    match order:
        case ResizeJob(workers=workers, limits=limits):
            return AskResize(workers=workers, limits=limits, unless_by_hand=unless_by_hand)
        case DrainWorker(worker=worker):
            return AskDrain(worker=worker)
        case EvictWorkers():
            return AskEvict()
        case StopAttempt(why=why):
            return AskStop(who="controller", why=why)


async def ask_runs(lines: Mapping[str, RunLine]) -> dict[str, Answer]:
    """Return the status of each run with a coordinator that answers in time, by job.

    Silent coordinators cost at most `ANSWER_S` for each group of `REQUESTS_AT_ONCE`.
    """
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def ask(line: RunLine) -> Answer | None:
        async with slots:
            return await line.ask_status()

    found = await asyncio.gather(*map(ask, lines.values()))
    return {job: answer for job, answer in zip(lines, found, strict=True) if answer is not None}


class WorkerCounts(NamedTuple):
    """Workers of a run; see `elastane.cluster.nouns.engine.Observation` for the fields."""

    workers: int | None = None
    members: int | None = None
    target: int | None = None
    ending: bool = False
    crossings: tuple[Crossing, ...] = ()


def count_workers(answer: Answer | None) -> WorkerCounts:
    """Count the workers; all counts are unknown if the coordinator is silent or has just started."""
    if answer is None or not answer.target:
        return WorkerCounts()
    workers = [process for process in answer.processes if process.role == "worker"]
    if not 0 < answer.target <= MOST_WORKERS or len(workers) > MOST_WORKERS:
        # A coordinator is a process of the job, so its answer may be wrong. Ignore impossible numbers.
        return WorkerCounts()
    return WorkerCounts(
        workers=len(workers),
        # A worker trains from its first generation on; before, it starts or waits to be admitted.
        members=sum(bool(worker.generation) for worker in workers),
        target=answer.target,
        ending=answer.state in ENDING,
        crossings=tuple(_list_crossings(workers)),
    )


def _list_crossings(workers: Iterable[ProcessInfo]) -> Iterator[Crossing]:
    for process in workers:
        if process.worker is not None and process.sites:
            for target, sent_bytes in process.crossings.items():
                yield Crossing(process.worker, process.sites[0], target, sent_bytes)
