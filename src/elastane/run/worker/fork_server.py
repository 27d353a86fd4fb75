"""The fork server of a run: it imports the modules of all workers once, then forks workers.

It is an `elastane.run.worker.fork_loop.ForkLoop`. Workers outlive it.
"""

import argparse
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from elastane.common.safe_text import escape_line
from elastane.run.agent.fork_server import ForkRequest, ProcessStart
from elastane.run.nouns.notices import withstand_notices
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_record
from elastane.run.worker.fork_loop import ForkLoop
from elastane.run.worker.worker_log import open_worker_log

MODULES = (
    "torch",
    "torch._dynamo",
    "numpy",
    "safetensors.torch",
    "elastane.run.worker.worker",
    # What a script imports by its first `elastane.join`.
    "elastane.run.worker.session",
)
LOST = 1


class WorkerForkLoop(ForkLoop):
    """Forks workers.

    Args:
        run_dir: the directory of the run, as its node sees it.
        lifeline: see `ForkLoop`.
        attempt: how often the run had been resumed when the attempt of the agent began.
        streams: the descriptors of the workers' standard input, output and error; empty: input is empty, and
            the others go to the worker's log.
    """

    def __init__(self, run_dir: RunDir, lifeline: int, attempt: int, streams: tuple[int, ...] = ()) -> None:
        super().__init__(run_dir, lifeline)
        self._attempt, self._streams = attempt, streams

    def handle(self, request: ForkRequest) -> None:
        for start in request.start:
            self.fork(start)

    def become(self, start: ProcessStart) -> NoReturn:
        # A worker ends its process itself; this is the end of one that could not begin.
        os._exit(self._run_worker(start.worker))

    def handle_end(self, pid: int) -> None:
        """Do nothing: all children are workers."""

    def end(self) -> None:
        """Do nothing: workers outlive their fork server."""

    def _run_worker(self, worker: int) -> int:
        """Run the worker in the forked process; return its exit code."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if self._streams:
                self._take_streams()
            else:
                self._redirect_to_log(worker)
            _run_forked(self.run_dir, worker, self.lifeline, self._attempt)
        except SystemExit as exit_:
            return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except BaseException as error:  # noqa: BLE001 - the one place where a failure becomes an exit code
            traceback.print_exc()
            return _find_exit_code(error)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    def _redirect_to_log(self, worker: int) -> None:
        """Send output to the worker's log, make input empty, and close the server's own descriptors."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open(self.run_dir.log(f"worker-{worker}"), flags, 0o644)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for fd in (log, empty, *self.own):
            os.close(fd)
        sys.stdout, sys.stderr = open_worker_log(1), open_worker_log(2)

    def _take_streams(self) -> None:
        """Take input and output of `elastane run`, mostly its terminal."""
        for standard, stream in enumerate(self._streams):
            os.dup2(stream, standard)
        for fd in (*self._streams, *self.own):
            os.close(fd)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = open_worker_log(1), open_worker_log(2)


def _find_exit_code(error: BaseException) -> int:
    from elastane.run.worker.exhaustion import find_own_exhaustion

    resource = find_own_exhaustion(error)
    return LOST if resource is None else resource.exit_code


def _run_forked(run_dir: RunDir, worker: int, lifeline: int, attempt: int) -> NoReturn:
    from elastane.run.worker.worker import run_worker

    run_worker(run_dir, worker, lifeline, attempt)


def preload_modules(names: Iterable[str]) -> None:
    """Import what the workers need; a worker that needs a missing module fails with its own traceback."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            sys.stderr.write(f"not loaded before the workers start: {name}: {escape_line(str(error))}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--node", default="", help="name of this node; empty: the first one")
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--attempt", type=int, required=True, help="how often the run had been resumed")
    parser.add_argument("--streams", default="", help="descriptors of the workers' standard streams: 5,6,7")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    withstand_notices()
    streams = tuple(map(int, options.streams.split(","))) if options.streams else ()
    run_dir = RunDir(options.run_dir, options.node)
    server = WorkerForkLoop(run_dir, options.lifeline, options.attempt, streams)
    # The import of NumPy starts threads of its BLAS, before any fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for module in MODULES:
        importlib.import_module(module)
    preload_modules(read_record(run_dir).spec.preload)
    server.serve()


if __name__ == "__main__":
    main()
