"""A run to its end: one attempt, and another from a checkpoint whenever every copy of the state has died."""

import asyncio
import signal

import msgspec

from elastane.api.control import RunOver
from elastane.api.errors import ElastaneError, RunDirectoryLost, RunFailed
from elastane.api.exit_codes import ExitCode
from elastane.api.rundir import RunDir
from elastane.api.spec import RunRecord
from elastane.attempts.display import AttemptView, Display
from elastane.attempts.final_event import write_final_event
from elastane.attempts.resumption import prepare_resumption

MOST_FUTILE_ATTEMPTS = 3


def run_to_end(run_dir: RunDir, record: RunRecord, audience: Display) -> RunOver:
    """The run to its end. The caller holds its lock.

    Raises:
        RunFailed: its processes cannot be started, or its directory was lost.
    """
    in_vain = 0
    while True:
        try:
            over, wanted = asyncio.run(train_attempt(run_dir, record, audience))
        except RunDirectoryLost as lost:
            # Nothing is written in its old place. What is there now may be another run's.
            if lost.moved_to is not None:
                _record_end_elsewhere(RunDir(lost.moved_to), lost, audience)
            raise
        try:
            write_final_event(run_dir, over)
        except (OSError, ElastaneError) as error:
            audience.say(f"the end of the run is not in its files: {error}")
        if not over.lost or in_vain == MOST_FUTILE_ATTEMPTS or record.spec.debug:
            return over
        before = record.resumed.step if record.resumed is not None else 0
        # Those that it gave back meanwhile are somebody else's.
        spec = msgspec.structs.replace(record.spec, start=wanted)
        try:
            record = prepare_resumption(run_dir, spec, audience.say, why="every copy of the state died")
        except ElastaneError as error:
            audience.say(f"no way back: {error}")
            return over
        # One that dies before its first new checkpoint will do so again.
        in_vain = in_vain + 1 if record.resumed is not None and record.resumed.step <= before else 0


def _record_end_elsewhere(run_dir: RunDir, lost: RunDirectoryLost, audience: Display) -> None:
    """Record in a directory that was moved why its run ended."""
    try:
        write_final_event(run_dir, RunOver(code=1, why=lost.what))
        run_dir.endpoint.unlink(missing_ok=True)
    except (OSError, ElastaneError) as error:
        audience.say(f"the end of the run is not in its files: {error}")


async def train_attempt(run_dir: RunDir, record: RunRecord, audience: Display) -> tuple[RunOver, int]:
    """One attempt: the first SIGINT or SIGTERM stops at the next commit, the second ends everything at once.

    Returns:
        How it ended, and how many workers it was to have last.
    """
    from elastane.agent.agent import Agent  # noqa: PLC0415 - sockets are loaded by whoever needs them

    agent = Agent(run_dir, record.spec, resumed=record.resumed)
    view = audience.view(record)
    interrupts = 0

    def interrupted() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            view.say("stopping at the next commit; Ctrl-C again ends it at once")
            agent.stop()
        else:
            view.say("ending every process of the run")
            agent.kill()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    showing = asyncio.create_task(view.follow())
    try:
        over = await agent.run()
    except OSError as error:
        raise RunFailed(f"cannot start the processes of the run in {run_dir.root}: {error}") from error
    finally:
        await close_view(showing, view, audience)
    # Killed before it could say so itself: the outcome is still the user's wish, not a failure.
    if interrupts > 1 and over.code != 0:
        over = msgspec.structs.replace(over, code=ExitCode.STOPPED_BY_USER, traceback="")
    return over, agent.target


async def close_view(showing: "asyncio.Task[None]", view: AttemptView, audience: Display) -> None:
    """Let the view take its last look; a view that failed says so, but does not change the run's outcome."""
    showing.cancel()
    (outcome,) = await asyncio.gather(showing, return_exceptions=True)
    failed = isinstance(outcome, Exception)
    view.close(look=not failed)
    if failed:
        audience.say(f"the view failed ({outcome}); the run went on without it")
