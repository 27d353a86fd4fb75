"""One attempt of a job, on this machine or on several ones.

The number of the attempt fences it: an attempt that has begun, or an earlier one, never starts again, even if
it is requested later.
"""

import os
import time
import traceback
from dataclasses import dataclass

import msgspec

from elastane.common import process_identity
from elastane.common.errors import BadInput, ElastaneError, RunDirectoryLost
from elastane.common.exit_codes import ExitCode
from elastane.common.extras import require
from elastane.run.attempts.attempt_file import read_attempt, write_attempt
from elastane.run.attempts.beginnings import begin_from_checkpoints
from elastane.run.attempts.display import LogDisplay
from elastane.run.attempts.results import write_results
from elastane.run.attempts.resumption import prepare_rerun, prepare_restart, prepare_resumption
from elastane.run.attempts.supervision import run_to_end
from elastane.run.nouns.attempts import RETRYABLE, Attempt, AttemptOutcome
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.hosts import RunHost
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.nouns.membership import SiteName
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from elastane.run.nouns.trackers import require_trackers
from elastane.run.observability.facts import has_finished
from elastane.run.observability.run_files import read_events, read_record, write_record

NOTHING_TO_DO = 0


@dataclass(frozen=True, slots=True)
class AttemptRequest:
    """The attempt that this process was started for.

    Args:
        workers: number at the start.
        limits: the current fewest and most workers.
        address: where this machine listens, so that others can join; None: it trains alone.
        slots: the most workers on this machine, if others can join.
        sites: of which this machine may read the data.
    """

    attempt: int
    workers: int
    limits: tuple[int, int]
    address: MachineAddress | None = None
    slots: int = 1
    sites: tuple[SiteName, ...] = ()


def run_attempt(run_dir: RunDir, request: AttemptRequest, display: LogDisplay) -> int:
    """Run the attempt unless it has begun before; return its exit code. The caller holds the lock."""
    try:
        newest = read_attempt(run_dir)
    except BadInput as error:
        display.say(str(error))
        return RETRYABLE
    if newest is not None and newest.number >= request.attempt:
        display.say(f"attempt {request.attempt} has begun before; the newest is {newest.number}")
        return NOTHING_TO_DO
    pid = os.getpid()
    attempt = Attempt(
        number=request.attempt,
        pid=pid,
        started=process_identity.read_start_time(pid) or 0,
        began_s=time.time(),
    )
    write_attempt(run_dir, attempt)
    display.say(f"attempt {request.attempt} begins with {request.workers} workers")
    try:
        outcome = determine_outcome(run_dir, request, display)
    except RunDirectoryLost as lost:
        # The file for the outcome is gone.
        display.say(f"attempt {request.attempt} ended: {lost}")
        return lost.exit_code
    if outcome is None:
        display.say(f"this machine has left attempt {request.attempt}, which goes on")
        return ExitCode.OK
    display.say(f"attempt {request.attempt} ended with {outcome.code}: {outcome.why}")
    write_attempt(run_dir, msgspec.structs.replace(attempt, outcome=outcome))
    return outcome.code


def record_outcome(run_dir: RunDir, number: int, outcome: AttemptOutcome) -> None:
    """Record how an attempt ended that began on another machine, unless it is recorded already.

    Raises:
        BadInput: the file of the attempt is damaged.
        OSError: it cannot be written.
    """
    attempt = read_attempt(run_dir)
    if attempt is not None and attempt.number == number and attempt.outcome is None:
        write_attempt(run_dir, msgspec.structs.replace(attempt, outcome=outcome))


def determine_outcome(run_dir: RunDir, request: AttemptRequest, display: LogDisplay) -> AttemptOutcome | None:
    """Run to the end and return the outcome. This is the one place where a failure becomes an outcome.

    Returns:
        The outcome; None: this machine has left the run, which goes on on other ones.

    Raises:
        RunDirectoryLost: the run directory was removed, moved or replaced.
    """
    try:
        require("torch", "a job on this machine needs torch")
        if has_finished(read_events(run_dir, torn_tail=True)):
            # The previous attempt ended after it wrote the event and before it wrote its file.
            over = RunOver(code=0, why="all steps are made")
        else:
            require_trackers(read_record(run_dir).spec.log, "training.log:")
            outcome = run_to_end(run_dir, prepare_record(run_dir, request, display), display)
            if outcome is None:
                return None
            over = outcome
        write_results(run_dir, display.say)
    except RunDirectoryLost:
        raise
    except BadInput as error:
        # A changed script or a damaged file: another attempt would fail in the same way.
        return AttemptOutcome(code=error.exit_code, why=str(error))
    except ElastaneError as error:
        return AttemptOutcome(code=RETRYABLE, why=str(error))
    except Exception as error:  # noqa: BLE001 - see above
        traceback.print_exc()
        return AttemptOutcome(code=RETRYABLE, why=f"{type(error).__name__}: {error}")
    return judge_end(over)


def judge_end(over: RunOver) -> AttemptOutcome:
    """Return the outcome of an attempt from the end of its run."""
    blameless = over.code not in (ExitCode.OK, ExitCode.STOPPED_BY_USER) and (over.lost or not over.traceback)
    return AttemptOutcome(code=RETRYABLE if blameless else over.code, why=over.why, traceback=over.traceback)


def prepare_record(run_dir: RunDir, request: AttemptRequest, display: LogDisplay) -> RunRecord:
    """Prepare the run directory for the attempt and return the record of the run.

    The attempt begins anew, from the checkpoints that its job names, or with its own newest valid checkpoint.

    Raises:
        ElastaneError: there are checkpoints, and none can be read.
    """
    record = read_record(run_dir)
    spec = adapt_spec(record, request)
    if not run_dir.events.exists():
        record = msgspec.structs.replace(record, spec=spec)
        write_record(run_dir, record)
        if spec.begins_from and record.origin is None:
            return begin_from_checkpoints(run_dir, record, display.say)
        return record
    why = f"attempt {request.attempt}"
    if spec.contract is not None:
        return prepare_rerun(run_dir, spec, why=why)
    if spec.checkpoints is None and record.origin is None:
        return prepare_restart(run_dir, spec, display.say, why=why)
    return prepare_resumption(run_dir, spec, display.say, why=why)


def adapt_spec(record: RunRecord, request: AttemptRequest) -> RunSpec:
    """Return the run's spec with the sizes of this attempt, at most one process for each virtual rank."""
    low, high = request.limits
    if record.pinned is not None:
        high = min(high, record.pinned.virtual_ranks // record.spec.processes)
    low = min(low, high)
    start = min(max(low, request.workers), high)
    spec = msgspec.structs.replace(
        record.spec, min_workers=low, max_workers=high, start=start, sites=request.sites
    )
    address = request.address
    if address is None:
        # An earlier attempt may have trained on several machines.
        return msgspec.structs.replace(spec, listen="", advertised="", ports=None, hosts=())
    # Others join by themselves, so this machine is the only one that the run must know.
    own = RunHost(address.host, request.slots)
    return msgspec.structs.replace(
        spec, listen=address.host, advertised=address.advertised, ports=address.ports, hosts=(own,)
    )
