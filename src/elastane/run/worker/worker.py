"""A worker process: it runs the user's script as ``python`` does, then waits for its dismissal."""

import bdb
import os
import shutil
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from elastane.common.errors import ElastaneError, RunFailed, StateLost
from elastane.run.agent import priority
from elastane.run.connections.endpoint import AnotherAttempt
from elastane.run.nouns import control
from elastane.run.nouns.rundir import GATHERED, RunDir
from elastane.run.nouns.sites import read_sites
from elastane.run.nouns.spec import RunSpec, number_attempt
from elastane.run.observability.run_files import read_record
from elastane.run.worker import main_program, worker_settings
from elastane.run.worker.artifacts import remove_unfinished
from elastane.run.worker.data.determinism import seed_everything
from elastane.run.worker.error_hints import find_hint
from elastane.run.worker.exhaustion import exit_for_replacement, find_exhausted_resource, find_own_exhaustion
from elastane.run.worker.finished.model_writer import write_finished
from elastane.run.worker.gangs.gang_gpus import assign_gpus
from elastane.run.worker.gangs.seat import LONE_SEAT, Seat
from elastane.run.worker.heartbeat import Heartbeat
from elastane.run.worker.notice import take_notices
from elastane.run.worker.process_end import disown_finalizers, end_process
from elastane.run.worker.reporter import Reporter, get_reporter
from elastane.run.worker.script_output import take_over_print
from elastane.run.worker.state.gpu_locks import assign_gpu
from elastane.run.worker.state.training_state import TrainingState
from elastane.run.worker.worker_log import read_last_lines
from elastane.run.worker.worker_round import WorkerLeft

FLUSH_S = 5.0
LAST_LINES = 5
"""Lines of a script's stderr in the error, if it ends itself."""
OUR_THREADS = "elastane-"
DEBUGGER_QUIT = "the debugger was quit, so the run ends after its last committed step\n"
NO_TERMINAL = (
    "the script called breakpoint(), but a worker has no terminal\n"
    "  means: the debugger had no input and quit, which ended the script\n"
    "  do:    run one worker with this terminal: elastane run --debug; or remove breakpoint()\n"
)


def run_worker(files: RunDir, worker: int, lifeline: int, attempt: int, seat: Seat = LONE_SEAT) -> NoReturn:
    """Run a worker of a run, in this process, to the end of the process.

    Args:
        files: the directory of the run, as its node sees it.
        lifeline: the read end of a pipe; it closes when the agent ends, and then this process ends.
        attempt: how often the run had been resumed when the attempt of the agent began.
        seat: the place of this process in its worker.

    Raises:
        AnotherAttempt: another attempt of the run has begun.
    """
    priority.lower()
    threading.excepthook = _handle_dead_thread
    threading.Thread(target=_watch_lifeline, name="elastane-lifeline", args=(lifeline,), daemon=True).start()
    record = read_record(files)
    spec, present = record.spec, number_attempt(record.resumed)
    if present != attempt:
        raise AnotherAttempt(attempt, present)
    sites = read_sites(files) if files.node else spec.sites
    worker_settings.set_settings(files, worker, spec, record.resumed, record.origin, seat, sites)
    if seat.processes == 1:
        assign_gpu(worker)
    else:
        assign_gpus(seat)
    # A script may build its model before it joins; every worker then has the same initial values.
    seed_everything(spec.seed)
    disown_finalizers()
    take_notices()
    Heartbeat(files.node_files.beats, worker, seat).beat_at_imports()
    end_process(files, worker, _train(files, spec), spec.end_s, seat)


def _train(files: RunDir, spec: RunSpec) -> int:
    """Run the script and serve its state, until the end or the dismissal of this worker.

    Returns:
        The exit code: 0 unless the script failed.
    """
    try:
        _run_script(spec)
    except WorkerLeft:
        return _wait_for_dismissal(files, spec)
    except SystemExit as exit_:
        return _report_failure(_describe_exit(exit_))
    except bdb.BdbQuit:
        return _report_failure(DEBUGGER_QUIT if spec.debug else NO_TERMINAL)
    # The one place where an error of the user's code ends the run, with its own traceback.
    except BaseException as error:  # noqa: BLE001
        if (resource := find_own_exhaustion(error)) is not None:
            exit_for_replacement(_format_script_traceback(error).rstrip(), resource)
        if not isinstance(error, ElastaneError) and (reporter := get_reporter()) is not None:
            reporter.await_cause()
        code = _report_failure(_format_script_traceback(error), lost=isinstance(error, StateLost))
        _call_own_hook(error)
        return code
    reporter = get_reporter()
    if reporter is None or reporter.state is None:
        return _report_failure(f"{_build_untrained_error(spec, joined=reporter is not None)}\n")
    if not reporter.complete:
        return _report_failure(
            "the script ended before the run did: it left the loop over run.steps(...) inside a step\n"
            "  means: the other workers would wait for this one forever, so the run is over\n"
            "  do:    leave the loop between two steps, or end the run with run.stop(reason)\n"
        )
    return _wait_for_dismissal(files, spec)


def _call_own_hook(error: BaseException) -> None:
    """Call the script's own ``sys.excepthook``, if it has set one, as Python does."""
    if sys.excepthook is not sys.__excepthook__:
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except Exception:  # noqa: BLE001 - the script's own code, after its end
            traceback.print_exc()


def _describe_exit(exit_: SystemExit) -> str:
    """Return the error for a script that has ended itself, with its own last words on stderr."""
    sys.stderr.flush()
    lines = read_last_lines(sys.stderr, LAST_LINES)
    return "\n".join([f"the script ended with SystemExit({exit_.code!r})", *lines]) + "\n"


def _build_untrained_error(spec: RunSpec, *, joined: bool) -> RunFailed:
    """Return the error for a script that has ended without a step of the run."""
    script = spec.module or Path(spec.script).name
    if not joined:
        return RunFailed(
            f"{script} ended without taking part in the run: it never called elastane.join()",
            means="each worker has run the script by itself; the run has trained and recorded nothing",
            do="call run = elastane.join() at the beginning of the script and run.prepare(model, optimizer) "
            "before training, and loop with for step in run.steps(dataset, ...); see docs/script.md",
        )
    return RunFailed(
        f"{script} ended without training: it never entered the loop over run.steps(...)",
        means="a run consists of the steps that this loop makes",
        do="iterate it: for step in run.steps(dataset, ...): for batch in step: step.backward(loss); "
        "a call of run.steps alone does nothing",
    )


def _run_script(spec: RunSpec) -> None:
    """Run the script to its end; if it left its loop between two steps, end the run.

    Only after the script's end is it certain that the script did not leave its loop because of an error.
    """
    if not spec.debug:
        take_over_print(Path(spec.script).resolve().parent)
    try:
        main_program.run_main_program(spec)
    except SystemExit as exit_:
        if exit_.code not in (None, 0):
            raise
    reporter = get_reporter()
    if reporter is not None and not reporter.complete:
        reporter.leave_loop()


def _wait_for_dismissal(files: RunDir, spec: RunSpec) -> int:
    """Serve state and write the model on request, until `control.Dismiss`; return the exit code."""
    reporter = get_reporter()
    assert reporter is not None, "a script that has trained has joined"
    reporter.report_end()
    assert reporter.state is not None, "a finished worker has trained"
    try:
        order = reporter.wait_for_order()
        if isinstance(order, control.WriteModel):
            remove_unfinished(files.artifacts)
            # All scripts have ended, so no worker reads the tensors of an evaluation any more.
            shutil.rmtree(files.root / GATHERED, ignore_errors=True)
            reporter.prepare_writing()
            answer = _write_model(reporter.worker, reporter.state, files, spec)
    except ElastaneError as error:
        return _report_failure(f"{error}\n")
    while isinstance(order, control.WriteModel):
        reporter.send(answer)
        # A request that was repeated during the write of a large model needs only the answer.
        order = reporter.last_orders.get()
    reporter.flush_last(order.code)
    return order.code


def _write_model(worker: int, state: TrainingState, files: RunDir, spec: RunSpec) -> control.ModelWritten:
    """Write the model, or return why this worker cannot; another worker may be able to.

    Raises:
        ElastaneError: the files cannot hold a part of the state, so no worker can write them.
    """
    try:
        written = write_finished(state, files, spec)
        if files.is_private:
            from elastane.run.connections.result_sender import send_model

            send_model(files, written)
        return control.ModelWritten(worker=worker, files=written)
    except (OSError, MemoryError, RuntimeError) as error:
        if not isinstance(error, OSError) and find_exhausted_resource(error) is None:
            raise
        problem = (
            f"the model could not be written to {files.root}: {str(error) or type(error).__name__}\n"
            "  means: the training and its ledger are complete, but the weights are not saved\n"
            "  do:    free space under the run directory and run again\n"
        )
        sys.stderr.write(problem)
        return control.ModelWritten(worker=worker, error=problem)


def _format_script_traceback(error: BaseException) -> str:
    """Return the traceback from the user's script on, without Elastane's frames above it."""
    frames = traceback.TracebackException.from_exception(error)
    while frames.stack and frames.stack[0].filename in (__file__, main_program.__file__):
        frames.stack.pop(0)
    text = "".join(frames.format())
    return (
        f"{error}\n" if isinstance(error, ElastaneError) and not error.__cause__ else text + find_hint(error)
    )


def _report_failure(text: str, *, lost: bool = False) -> int:
    sys.stderr.write(text)
    # A script may fail before it joins, mostly at its imports; report that too.
    reporter = get_reporter() or Reporter(worker_settings.get_settings())
    reporter.script_ended = True
    # Report the committed steps before the failure.
    reporter.steps.send_all()
    reporter.send(control.WorkerFailed(worker=reporter.worker, traceback=text, lost=lost))
    reporter.flush(FLUSH_S)
    return 1


def _handle_dead_thread(args: threading.ExceptHookArgs) -> None:
    """End this worker after one of Elastane's threads has died, so that another worker replaces it.

    A thread of the script may die, as under plain ``python``.
    """
    if args.thread is None or not args.thread.name.startswith(OUR_THREADS):
        threading.__excepthook__(args)
        return
    trace = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
    resource = find_own_exhaustion(args.exc_value) if args.exc_value is not None else None
    exit_for_replacement("".join(trace).rstrip(), resource)


def _watch_lifeline(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(0)
